// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

const (
	rowAwake       = "exec of /bin/true in a container that is awake"
	rowSleeping    = "exec of /bin/true in one that sleeps"
	rowSleepRatio  = "exec in one that sleeps, by exec in one that is awake"
	rowSleepIdle   = "CPU time of a container that sleeps, and of its shim"
	rowSleepPoll   = "the same, with statistics each second"
	rowSleepShared = "the same, in a shared shim"
	rowPyAwake     = "answer of a Python interpreter with 200 MiB that is awake"
	rowPyResume    = "the same, paused: resume and answer"
	rowPyAsleep    = "the same, asleep, its memory given back"
	rowPyTimes     = "the last by resume and answer"
	rowPyAll       = "asleep: answer for which it reads the 200 MiB"
	rowPyMemory    = "its memory asleep, by that awake"
)

func sleepGroup() group {
	return group{
		name: "sleep", about: "containers that sleep, which only our shim has", rows: []row{
			{Name: rowAwake, Unit: "ms"},
			{Name: rowSleeping, Unit: "ms"},
			{Name: rowSleepRatio, Unit: "×", Target: target{Limit: 1.3}},
			{Name: rowSleepIdle, Unit: "ms/s", Target: target{Limit: 0.05}},
			{Name: rowSleepPoll, Unit: "ms/s", Target: target{Limit: 0.05}},
			{Name: rowSleepShared, Unit: "ms/s", Target: target{Limit: 0.05}},
			{Name: rowPyAwake, Unit: "ms"},
			{Name: rowPyResume, Unit: "ms"},
			{Name: rowPyAsleep, Unit: "ms"},
			{Name: rowPyTimes, Unit: "×", Target: target{Limit: 10}},
			{Name: rowPyAll, Unit: "ms"},
			{Name: rowPyMemory, Unit: "×"},
		},
		measure: func(b *bench, ctx context.Context) error {
			return errors.Join(b.sleeps(ctx), b.sleepCosts(ctx), b.turns(ctx, 1, b.interprets))
		},
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
		return nil
	})
}

// sleepCosts takes the CPU time of containers that sleep, in shims of their own and in a shared one.
func (b *bench) sleepCosts(ctx context.Context) error {
	return b.turns(ctx, 1, func(ctx context.Context, column int, s *subject) error {
		if !s.isShim() {
			return nil
		}
		poll := func(r *tasks.MetricsRequest) error {
			_, err := s.host.client.TaskService().Metrics(ctx, r)
			return err
		}
		none := func(*tasks.MetricsRequest) error { return nil }
		return errors.Join(
			b.sleepCost(ctx, column, s, []containerd.NewContainerOpts{dozing()}, []costRow{
				{rowSleepIdle, none}, {rowSleepPoll, poll},
			}),
			b.sleepCost(ctx, column, s, s.sharing(dozing()), []costRow{{rowSleepShared, poll}}),
		)
	})
}

// costRow is measured while poll is called each second, as containerd's CRI plugin asks for the statistics of all
// containers with one request (internal/cri/server/stats_collector.go).
type costRow struct {
	name string
	poll func(*tasks.MetricsRequest) error
}

func (b *bench) sleepCost(
	ctx context.Context, column int, s *subject, opts []containerd.NewContainerOpts, rows []costRow,
) (err error) {
	var all []*container
	defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
	for range b.settings.Containers {
		c, err := s.run(ctx, b.id("dozing"), opts...)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	for _, c := range all {
		if err := awaitFrozen(c); err != nil {
			return err
		}
	}
	if !pause(ctx, denseSettle) { // the shims have given their memory back
		return ctx.Err()
	}
	for _, r := range rows {
		used, err := b.usedAsleep(ctx, s, all, r.poll)
		if err != nil {
			return err
		}
		b.add(r.name, column, used/float64(len(all)))
	}
	return nil
}

// usedAsleep is the CPU time of shims and containers, in ms/s, while poll is called each second.
func (b *bench) usedAsleep(
	ctx context.Context, s *subject, all []*container, poll func(*tasks.MetricsRequest) error,
) (float64, error) {
	request := &tasks.MetricsRequest{}
	for _, c := range all {
		request.Filters = append(request.Filters, "id=="+c.ID())
	}
	var used [2]time.Duration
	seconds := int(b.settings.Idle / time.Second)
	for i := range used {
		for range i * seconds {
			if err := poll(request); err != nil {
				return 0, err
			}
			if !pause(ctx, time.Second) {
				return 0, ctx.Err()
			}
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
				return 0, err
			}
			used[i] += one
		}
	}
	return milliseconds(used[1]-used[0]) / float64(seconds), nil
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
