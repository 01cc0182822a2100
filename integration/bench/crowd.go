// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// settle is how long what has begun has before it counts as idle.
const settle = 5 * time.Second

const (
	rowCrowdStart  = "containers at once, until all run"
	rowCrowdDelete = "containers at once, until all are deleted"
	rowCrowdMemory = "containers at once, PSS of their shims"
	rowCrowdCPU    = "containers at once, CPU time of the machine for each until all run"
)

func crowdGroup() group {
	return group{
		name: "crowd", about: "containers at once, as many as -containers says, each with its shim",
		rows: []row{
			{Name: rowCrowdStart, Unit: "ms", Target: target{Ratio: 0.25}},
			{Name: rowCrowdCPU, Unit: "ms", Target: target{Ratio: 0.27}},
			{Name: rowCrowdDelete, Unit: "ms"},
			{Name: rowCrowdMemory, Unit: "MiB", Target: target{Ratio: 0.60}},
		},
		measure: (*bench).crowd,
	}
}

// crowdRounds is few, as a round of many containers takes seconds and is a sum. Of few containers there are more
// rounds.
func crowdRounds(s settings) int {
	const least, containers = 2, 60
	return max(least, min(s.Rounds, containers/s.Containers))
}

// crowd starts all containers of a subject at once, sums up the memory of the shims and deletes all at once.
func (b *bench) crowd(ctx context.Context) error {
	return b.turns(ctx, crowdRounds(b.settings), func(ctx context.Context, column int, s *subject) (err error) {
		var all []*container
		before, err := machineTime()
		if err != nil {
			return err
		}
		took, err := timed(func() (err error) { all, err = b.many(ctx, s, b.settings.Containers); return err })
		if err != nil {
			return err
		}
		after, cpuErr := machineTime()
		defer func() {
			took, e := timed(func() error { return removeAll(ctx, all) })
			b.add(rowCrowdDelete, column, took)
			err = errors.Join(err, e)
		}()
		if cpuErr != nil {
			return cpuErr
		}
		b.add(rowCrowdStart, column, took)
		b.add(rowCrowdCPU, column, milliseconds(after-before)/float64(len(all)))
		if !pause(ctx, settle) {
			return ctx.Err()
		}
		var shims []int
		for _, c := range all {
			pid, err := c.shim()
			if err != nil {
				return err
			}
			shims = append(shims, pid)
		}
		sum, err := pss(shims...)
		b.add(rowCrowdMemory, column, sum)
		return err
	})
}

// many runs n idle containers, started all at once. When one fails, the others are removed.
func (b *bench) many(ctx context.Context, s *subject, n int, opts ...oci.SpecOpts) ([]*container, error) {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = b.id("one-of-many")
	}
	all, errs := make([]*container, n), make([]error, n)
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { all[i], errs[i] = s.run(ctx, id, sleeping(opts...)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, removeAll(ctx, all))
	}
	return all, nil
}

// removeAll removes containers at once.
func removeAll(ctx context.Context, all []*container) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		if c != nil {
			wg.Go(func() { errs[i] = c.remove(ctx) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}
