// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

const (
	rowAwake      = "exec of /bin/true in a container that is awake"
	rowSleeping   = "exec of /bin/true in one that sleeps"
	rowSleepRatio = "exec in one that sleeps, by exec in one that is awake"
	rowSleepIdle  = "containers that sleep, CPU time of their shims and of them"
)

func sleepGroup() group {
	return group{
		name: "sleep", about: "containers that sleep, which only our shim has", rows: []row{
			{Name: rowAwake, Unit: "ms"},
			{Name: rowSleeping, Unit: "ms"},
			{Name: rowSleepRatio, Unit: "×", Target: target{Limit: 1.3}},
			{Name: rowSleepIdle, Unit: "ms/s", Target: target{Limit: 10}},
		},
		measure: (*bench).sleeps,
	}
}

// dozing is a container that sleeps after a second.
func dozing() containerd.NewContainerOpts {
	return sleeping(oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/idle": "after=1s"}))
}

func (b *bench) sleeps(ctx context.Context) error {
	return b.turns(ctx, 1, func(ctx context.Context, column int, s *subject) (err error) {
		if !s.isShim() {
			return nil
		}
		var all []*container
		defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
		for range b.settings.Containers {
			c, err := s.run(ctx, b.id("dozing"), dozing())
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		awake, err := s.run(ctx, b.id("awake"), sleeping())
		if err != nil {
			return err
		}
		all = append(all, awake)
		process, err := probe(ctx, awake)
		if err != nil {
			return err
		}
		for n := range b.settings.Rounds {
			c := all[n%b.settings.Containers]
			if err := awaitFrozen(c); err != nil {
				return err
			}
			for _, one := range []struct {
				row string
				c   *container
			}{{rowAwake, awake}, {rowSleeping, c}} {
				ms, err := timed(func() error { return execProbe(ctx, one.c, b.id("exec"), process) })
				if err != nil {
					return err
				}
				b.add(one.row, column, ms)
			}
		}
		of := func(name string) float64 { return summarize(b.report.figure(name).Samples[b.run][column]).Median }
		b.add(rowSleepRatio, column, of(rowSleeping)/of(rowAwake))
		for _, c := range all[:len(all)-1] {
			if err := awaitFrozen(c); err != nil {
				return err
			}
		}
		if !pause(ctx, denseSettle) { // the shims have given their memory back
			return ctx.Err()
		}
		return b.sleepCost(ctx, column, s, all)
	})
}

// sleepCost takes the CPU time of shims and containers for a while.
func (b *bench) sleepCost(ctx context.Context, column int, s *subject, all []*container) error {
	var used [2]time.Duration
	for i := range used {
		if i > 0 && !pause(ctx, b.settings.Idle) {
			return ctx.Err()
		}
		pids := []int{}
		for _, p := range harness.Shims(s.host.namespace, "") {
			pids = append(pids, p.Pid)
		}
		for _, c := range all {
			pids = append(pids, int(c.task.Pid()))
		}
		for _, pid := range pids {
			one, err := cpuTime(pid)
			if err != nil {
				return err
			}
			used[i] += one
		}
	}
	b.add(rowSleepIdle, column, milliseconds(used[1]-used[0])/b.settings.Idle.Seconds())
	return nil
}

// awaitFrozen returns when a container sleeps.
func awaitFrozen(c *container) error {
	return harness.PollFor(30*time.Second, func() error {
		frozen, err := harness.Frozen(int(c.task.Pid()))
		if err == nil && !frozen {
			err = errors.New("it is awake")
		}
		return err
	})
}
