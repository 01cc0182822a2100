// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// Rows of what docs/executors.md is about.
const (
	rowPrewarmed       = "container that was created before, until it runs"
	rowPrewarmedMemory = "containers that were created, PSS of each with its shim"
	rowImage           = "/bin/true of an image, from nothing to its exit"
	rowHostRoot        = "/bin/true of the host (host-rootfs), likewise"
)

func prewarmGroup() group {
	return group{
		name: "prewarm", about: "containers that are created first and started later, as many as -containers says",
		rows: []row{
			{Name: rowPrewarmedMemory, Unit: "MiB", Target: target{Ratio: 0.35}}, {Name: rowPrewarmed, Unit: "ms"},
		},
		measure: func(b *bench, ctx context.Context) error { return b.turns(ctx, 1, b.prewarm) },
	}
}

// prewarm creates containers, looks at what they cost while they wait, and starts one after the other.
func (b *bench) prewarm(ctx context.Context, column int, s *subject) (err error) {
	var all []*container
	defer func() { err = errors.Join(err, removeAll(ctx, all)) }()
	for range b.settings.Containers {
		c, err := s.create(ctx, b.id("prewarmed"), sleeping())
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	if !pause(ctx, settle) {
		return ctx.Err()
	}
	var pids []int
	for _, c := range all {
		shim, err := c.shim()
		if err != nil {
			return err
		}
		pids = append(pids, int(c.task.Pid()), shim)
	}
	sum, err := pss(pids...)
	if err != nil {
		return err
	}
	b.add(rowPrewarmedMemory, column, sum/float64(len(all)))
	for _, c := range all {
		took, err := timed(func() error { return c.task.Start(ctx) })
		if err != nil {
			return err
		}
		b.add(rowPrewarmed, column, took)
	}
	return nil
}

func hostGroup() group {
	return group{
		name: "host", about: "a program of the host without an image, beside one of an image",
		rows: []row{{Name: rowImage, Unit: "ms"}, {Name: rowHostRoot, Unit: "ms"}},
		measure: func(b *bench, ctx context.Context) error {
			return b.turns(ctx, b.settings.Rounds, b.hostRoot)
		},
	}
}

// hostRoot times the two in turn. Only our shim has the setting.
func (b *bench) hostRoot(ctx context.Context, column int, s *subject) error {
	if err := b.toExit(ctx, rowImage, column, func() (*container, error) {
		return s.create(ctx, b.id("image"), spec([]string{"/bin/true"}))
	}); err != nil || !s.isShim() {
		return err
	}
	empty, err := os.MkdirTemp(s.host.Dir, "root-")
	if err != nil {
		return err
	}
	err = b.toExit(ctx, rowHostRoot, column, func() (*container, error) {
		return s.createOn(ctx, b.id("host"), cio.NullIO, nil, spec([]string{"/bin/true"}, oci.WithRootFSPath(empty)),
			s.withOptions("HostRootfs = 'default'"))
	})
	return errors.Join(err, os.Remove(empty))
}

// toExit times a container until its exit, and removes it.
func (b *bench) toExit(ctx context.Context, row string, column int, create func() (*container, error)) (err error) {
	begin := time.Now()
	c, err := create()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	exited, err := c.task.Wait(ctx)
	if err != nil {
		return err
	}
	if err := c.task.Start(ctx); err != nil {
		return err
	}
	if err := succeeded(<-exited); err != nil {
		return err
	}
	b.add(row, column, milliseconds(time.Since(begin)))
	return nil
}
