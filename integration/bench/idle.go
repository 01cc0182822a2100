// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"sandbox.internal/shim/integration/harness"
)

const (
	rowPSS     = "idle shim with one container, PSS"
	rowAnon    = "idle shim with one container, anonymous memory"
	rowWakeups = "idle shim with one container, wake-ups"
)

// idleRounds times the shims times -idle is what the group takes. One chance wake-up must not be the median.
const idleRounds = 3

func idleGroup() group {
	return group{
		name: "idle", about: "memory and wake-ups of a shim with one container, over -idle",
		rows: []row{
			{Name: rowPSS, Unit: "MiB", Target: target{Ratio: 0.60}},
			{Name: rowAnon, Unit: "MiB"},
			{Name: rowWakeups, Unit: "/s", Target: target{Zero: true}},
		},
		measure: func(b *bench, ctx context.Context) error { return b.turns(ctx, idleRounds, b.idle) },
	}
}

// idle looks at a shim that has nothing to do. There is no other at the time: two shims that run the same file share
// its pages, and each has only half of them in its PSS.
func (b *bench) idle(ctx context.Context, column int, s *subject) (err error) {
	if b.borrowed(column) {
		return nil
	}
	c, err := s.run(ctx, b.id("idle"), sleeping())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	shim, err := c.shim()
	if err != nil {
		return err
	}
	if !pause(ctx, settle) {
		return ctx.Err()
	}
	before, err := harness.Switches(shim)
	if err != nil {
		return err
	}
	if !pause(ctx, b.settings.Idle) {
		return ctx.Err()
	}
	after, err := harness.Switches(shim)
	if err != nil {
		return err
	}
	b.add(rowWakeups, column, float64(after-before)/b.settings.Idle.Seconds())
	for _, row := range []struct{ name, field string }{{rowPSS, "Pss"}, {rowAnon, "Anonymous"}} {
		mib, err := rollup(shim, row.field)
		if err != nil {
			return err
		}
		b.add(row.name, column, mib)
	}
	return nil
}
