// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// nuisance is what a neighbour of a container does. Each has half a CPU and 64 processes, so that what is measured is
// what they share beside the CPUs.
type nuisance struct {
	name    string
	command []string
	output  io.Writer                                                 // nil for none
	resume  func()                                                    // ends what a reader waits for; nil for nothing
	does    func(ctx context.Context, s *subject, c *container) error // until ctx ends; nil: nothing more
}

// execsEach is the time from one exec of a neighbour to the next.
const execsEach = 10 * time.Millisecond

// forks starts processes as fast as it can, within its limit.
const forks = "while :; do sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do for j in 1 2 3 4; do true & done; done; wait'; done"

func nuisances() []nuisance {
	sleep := []string{"/bin/sleep", "86400"}
	stalled, resume := io.Pipe() // of which nobody reads the end
	return []nuisance{
		{name: "that floods its output", command: []string{"/bin/yes", "a line of output"}, output: io.Discard},
		{name: "whose reader stalls", command: []string{"/bin/yes"}, output: resume, resume: func() { _ = stalled.Close() }},
		{name: "with 100 execs a second, or as many as there can be", command: sleep, does: manyExecs},
		{name: "that is paused and resumed all the time", command: sleep, does: manyEvents},
		{name: "that forks without end", command: []string{"/bin/sh", "-c", forks}},
		{name: "that is started, deleted and started again", command: sleep, does: manyLives},
	}
}

func (n nuisance) row() string { return "exec beside a neighbour " + n.name + ", by exec without" }

func neighboursGroup() group {
	var rows []row
	for _, n := range nuisances() {
		rows = append(rows, row{Name: n.row(), Unit: "×", Target: target{Limit: 1.5}})
	}
	return group{
		name: "neighbours", about: "execs beside a neighbour in the same shim of ours; not with crun", rows: rows,
		measure: func(b *bench, ctx context.Context) error {
			return b.turns(ctx, 1, func(ctx context.Context, column int, s *subject) (err error) {
				if b.borrowed(column) {
					return nil
				}
				victim, err := s.run(ctx, b.id("victim"), s.sharing(sleeping())...)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, victim.remove(ctx)) }()
				for _, n := range nuisances() {
					if err := b.neighbour(ctx, column, s, victim, n); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// neighbour times execs in a container before and while it has a neighbour.
func (b *bench) neighbour(ctx context.Context, column int, s *subject, victim *container, n nuisance) (err error) {
	process, err := probe(ctx, victim)
	if err != nil {
		return err
	}
	execs := func() (s summary, err error) {
		var all []float64
		for range b.settings.Rounds {
			ms, err := timed(func() error { return execProbe(ctx, victim, b.id("exec"), process) })
			if err != nil {
				return s, err
			}
			all = append(all, ms)
		}
		return summarize(all), nil
	}
	without, err := execs()
	if err != nil {
		return err
	}
	c, err := n.start(ctx, s, b.id("neighbour"))
	if err != nil {
		return err
	}
	does, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // ends with does
		if n.does != nil {
			ended <- n.does(does, s, c)
		} else {
			ended <- nil
		}
	}()
	pause(ctx, settle)
	with, err := execs()
	cancel()
	if n.resume != nil {
		n.resume()
	}
	if err = errors.Join(err, <-ended, c.remove(ctx)); err == nil {
		b.add(n.row(), column, with.Median/without.Median)
	}
	return err
}

func (n nuisance) start(ctx context.Context, s *subject, id string) (*container, error) {
	limits := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		quota, period, pids := int64(50000), uint64(100000), int64(64)
		s.Linux.Resources.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
		s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &pids}
		return nil
	}
	streams := cio.NullIO
	if n.output != nil {
		streams = cio.NewCreator(cio.WithStreams(nil, n.output, n.output))
	}
	c, err := s.createWith(ctx, id, streams, s.sharing(spec(n.command, limits))...)
	return c.started(ctx, err)
}

// repeat calls f until ctx ends, at intervals.
func repeat(ctx context.Context, every time.Duration, f func(ctx context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := f(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

func manyExecs(ctx context.Context, _ *subject, c *container) error {
	process, err := probe(ctx, c)
	if err != nil {
		return err
	}
	n := 0
	return repeat(ctx, execsEach, func(ctx context.Context) error {
		n++
		return execProbe(ctx, c, fmt.Sprint(c.ID(), "-", n), process)
	})
}

func manyEvents(ctx context.Context, _ *subject, c *container) error {
	return repeat(ctx, time.Microsecond, func(ctx context.Context) error {
		return errors.Join(c.task.Pause(ctx), c.task.Resume(ctx))
	})
}

func manyLives(ctx context.Context, s *subject, c *container) error {
	n := 0
	return repeat(ctx, time.Microsecond, func(ctx context.Context) error {
		n++
		ctx = namespaces.WithNamespace(ctx, s.host.namespace)
		other, err := s.run(ctx, fmt.Sprint(c.ID(), "-", n), s.sharing(sleeping())...)
		if err != nil {
			return err
		}
		return other.remove(ctx)
	})
}
