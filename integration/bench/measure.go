// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// Multiples of -n for what is cheap, so that each row takes about as long. The CPU time of the direct calls is taken for
// all of a round: so many that little of it is other work of the shim.
const (
	execsPerRound  = 3
	statsPerRound  = 10
	directPerRound = 100
)

// Rows of a container's life: the whole and its parts.
const (
	rowRun    = "run /bin/true to delete"
	rowCreate = "  create"
	rowStart  = "  start"
	rowExit   = "  exit"
	rowDelete = "  delete"
)

// measure fills the table, all subjects in turns.
func measure(ctx context.Context, h *host, subjects []subject, rounds int) (*table, error) {
	ctx = namespaces.WithNamespace(ctx, h.namespace)
	t := newTable(subjects)
	for _, name := range []string{rowRun, rowCreate, rowStart, rowExit, rowDelete} {
		t.row(name, "ms") // the sum stands above its parts
	}
	idle := make([]containerd.Task, len(subjects))
	for i, s := range subjects {
		task, remove, err := h.idle(ctx, s, fmt.Sprintf("idle-%d", i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		defer remove()
		idle[i] = task
	}
	for i, s := range subjects { // before anything else is asked of the shims: this is what an idle one takes
		if err := sizes(ctx, t, i, s, idle[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for round := range rounds {
		for turn := range subjects {
			i := (round + turn) % len(subjects) // nobody is always first
			if err := h.round(ctx, t, i, subjects[i], idle[i], round); err != nil {
				return nil, fmt.Errorf("%s, round %d: %w\n%s", subjects[i].name, round, err, h.logTail())
			}
		}
	}
	if err := h.cpusets(ctx, t, subjects); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, h.logTail())
	}
	return t, nil
}

// round takes each timed figure of one subject once, or a few times.
func (h *host) round(ctx context.Context, t *table, column int, s subject, idle containerd.Task, round int) error {
	id := fmt.Sprintf("run-%d-%d", column, round)
	if err := h.runToDelete(ctx, t, column, s, id); err != nil {
		return fmt.Errorf("run to delete: %w", err)
	}
	for n := range execsPerRound {
		took, err := timed(func() error { return execTrue(ctx, idle, fmt.Sprintf("exec-%d-%d", round, n)) })
		if err != nil {
			return fmt.Errorf("exec: %w", err)
		}
		t.add("exec /bin/true to delete", "ms", column, took)
	}
	if err := h.stats(ctx, t, column, idle); err != nil {
		return fmt.Errorf("stats: %w", err)
	}
	if err := h.directStats(ctx, t, column, idle); err != nil {
		return fmt.Errorf("stats at the shim's socket: %w", err)
	}
	took, err := h.startCommand(ctx, s, fmt.Sprintf("start-%d-%d", column, round))
	if err != nil {
		return fmt.Errorf("start command: %w", err)
	}
	t.add("shim start command", "ms", column, took)
	return nil
}

// timed is the duration of f in milliseconds.
func timed(f func() error) (float64, error) {
	begin := time.Now()
	err := f()
	return float64(time.Since(begin)) / float64(time.Millisecond), err
}

// create makes a container and its task. The rootfs is a bind mount, which the shim makes, as it does with a snapshot.
func (h *host) create(ctx context.Context, s subject, id string, opts ...oci.SpecOpts) (containerd.Container, containerd.Task, error) {
	c, err := h.client.NewContainer(ctx, id,
		containerd.WithRuntime(s.runtime, s.options),
		containerd.WithNewSpec(append(opts, oci.WithDefaultPathEnv)...))
	if err != nil {
		return nil, nil, err
	}
	task, err := c.NewTask(ctx, cio.NullIO, containerd.WithRootFS([]mount.Mount{
		{Type: "bind", Source: h.rootfs, Options: []string{"rbind", "rw"}},
	}))
	if err != nil {
		_ = c.Delete(ctx) // the error of NewTask is the one to report
		return nil, nil, err
	}
	return c, task, nil
}

// idle starts a container that does nothing.
func (h *host) idle(ctx context.Context, s subject, id string, opts ...oci.SpecOpts) (containerd.Task, func(), error) {
	c, task, err := h.create(ctx, s, id, append(opts, oci.WithProcessArgs("/bin/sleep", "86400"))...)
	if err != nil {
		return nil, nil, err
	}
	remove := func() {
		ctx := context.WithoutCancel(ctx)
		_, _ = task.Delete(ctx, containerd.WithProcessKill) // host.stop reports what is left
		_ = c.Delete(ctx)                                   // likewise
	}
	if err := task.Start(ctx); err != nil {
		remove()
		return nil, nil, err
	}
	return task, remove, nil
}

// runToDelete times a container from nothing to nothing, and its parts.
func (h *host) runToDelete(ctx context.Context, t *table, column int, s subject, id string) error {
	begin := time.Now()
	last := begin
	lap := func(row string) {
		now := time.Now()
		t.add(row, "ms", column, float64(now.Sub(last))/float64(time.Millisecond))
		last = now
	}
	c, task, err := h.create(ctx, s, id, oci.WithProcessArgs("/bin/true"))
	if err != nil {
		return err
	}
	lap(rowCreate)
	exited, err := task.Wait(ctx)
	if err != nil {
		return err
	}
	if err := task.Start(ctx); err != nil {
		return err
	}
	lap(rowStart)
	if status := <-exited; status.Error() != nil || status.ExitCode() != 0 {
		return fmt.Errorf("exit status %d, error %w", status.ExitCode(), status.Error())
	}
	lap(rowExit)
	if _, err := task.Delete(ctx); err != nil {
		return err
	}
	if err := c.Delete(ctx); err != nil {
		return err
	}
	lap(rowDelete)
	t.add(rowRun, "ms", column, float64(time.Since(begin))/float64(time.Millisecond))
	return nil
}

// execTrue runs /bin/true in task and deletes the exec.
func execTrue(ctx context.Context, task containerd.Task, id string) error {
	spec, err := task.Spec(ctx)
	if err != nil {
		return err
	}
	process := *spec.Process
	process.Args = []string{"/bin/true"}
	p, err := task.Exec(ctx, id, &process, cio.NullIO)
	if err != nil {
		return err
	}
	exited, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return err
	}
	if status := <-exited; status.Error() != nil || status.ExitCode() != 0 {
		return fmt.Errorf("exit status %d, error %w", status.ExitCode(), status.Error())
	}
	_, err = p.Delete(ctx)
	return err
}
