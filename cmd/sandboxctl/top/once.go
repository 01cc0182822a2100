// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"sandbox.internal/shim/cmd/sandboxctl/cli"
)

// onceWidth has room for all columns.
const onceWidth = 200

func writeOnce(ctx context.Context, w io.Writer, s Source, interval time.Duration, json bool) error {
	before, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	select {
	case <-time.After(interval):
	case <-ctx.Done():
		return ctx.Err()
	}
	now, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	now.SetRates(before)
	if json {
		return cli.WriteJSON(w, now)
	}
	m := newModel(ctx, s, interval)
	m.now, m.before, m.width, m.groups = now, before, onceWidth, groups(now)
	lines := append(m.summary()[:1], m.header())
	for _, r := range arrange(m.groups, m.order, "") {
		lines = append(lines, m.rowLine(&r))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}
