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
	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// once is what --once prints for programs: the second of two snapshots, with rates of the time between.
type once struct {
	Time     time.Time     `json:"time"`
	Interval time.Duration `json:"interval_ns"`
	Node     measure.Host  `json:"node"`
	Pods     []oncePod     `json:"pods"`
}

type oncePod struct {
	node.Pod
	Containers []onceContainer `json:"containers"`
}

type onceContainer struct {
	node.Container
	Rates node.Rates `json:"rates"`
}

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
	if json {
		return cli.WriteJSON(w, withRates(now, before))
	}
	m := newModel(ctx, s, interval)
	m.now, m.before, m.width, m.groups = now, before, onceWidth, groups(now, before)
	m.place()
	lines := append(m.summary()[:1], m.header())
	for i := range m.rows {
		lines = append(lines, m.rowLine(&m.rows[i], false))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

func withRates(now, before *node.Snapshot) once {
	passed := now.Time.Sub(before.Time)
	o := once{Time: now.Time, Interval: passed, Node: now.Node, Pods: []oncePod{}}
	for _, p := range now.Pods {
		pod := oncePod{Pod: p, Containers: []onceContainer{}}
		for _, c := range p.Containers {
			var r node.Rates
			if earlier := before.Container(c.Namespace, c.ID); earlier != nil {
				r = c.RatesSince(earlier)
			}
			pod.Containers = append(pod.Containers, onceContainer{c, r})
		}
		o.Pods = append(o.Pods, pod)
	}
	return o
}
