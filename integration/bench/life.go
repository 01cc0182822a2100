// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// Rows of a container's life: the whole and its parts.
const (
	rowRun    = "/bin/true, from nothing to deleted"
	rowCreate = "– create"
	rowStart  = "– start"
	rowExit   = "– exit"
	rowDelete = "– delete"
	rowSecond = "second container of a pod, until it runs"
	rowAlso   = "– and until it is deleted"
)

func runGroup() group {
	return group{
		name: "run", about: "a container with a shim of its own",
		rows: []row{
			{Name: rowRun, Unit: "ms", Target: target{Ratio: 0.32, BelowCrun: true}},
			{Name: rowCreate, Unit: "ms", Target: target{Ratio: 0.27}},
			{Name: rowStart, Unit: "ms"},
			{Name: rowExit, Unit: "ms"},
			{Name: rowDelete, Unit: "ms"},
		},
		measure: func(b *bench, ctx context.Context) error {
			return b.turns(ctx, b.settings.Rounds, func(ctx context.Context, column int, s *subject) error {
				return b.life(ctx, column, s)
			})
		},
	}
}

// life times a container from nothing to nothing, and its parts.
func (b *bench) life(ctx context.Context, column int, s *subject) error {
	id := b.id("run")
	begin := time.Now()
	last := begin
	lap := func(row string) {
		now := time.Now()
		b.add(row, column, milliseconds(now.Sub(last)))
		last = now
	}
	c, err := s.create(ctx, id, spec([]string{"/bin/true"}))
	if err != nil {
		return err
	}
	lap(rowCreate)
	exited, err := c.task.Wait(ctx)
	if err != nil {
		return err
	}
	if err := c.task.Start(ctx); err != nil {
		return err
	}
	lap(rowStart)
	if err := succeeded(<-exited); err != nil {
		return err
	}
	lap(rowExit)
	if _, err := c.task.Delete(ctx); err != nil {
		return err
	}
	if err := c.Delete(ctx); err != nil {
		return err
	}
	lap(rowDelete)
	b.add(rowRun, column, milliseconds(last.Sub(begin)))
	return nil
}

func succeeded(status containerd.ExitStatus) error {
	if status.Error() != nil || status.ExitCode() != 0 {
		return errors.Join(fmt.Errorf("exit status %d", status.ExitCode()), status.Error())
	}
	return nil
}

func podGroup() group {
	return group{
		name: "pod", about: "a second container in the shim of the first, asked for as CRI does",
		rows: []row{
			{Name: rowSecond, Unit: "ms", Target: target{Ratio: 0.22}},
			{Name: rowAlso, Unit: "ms"},
		},
		measure: (*bench).pods,
	}
}

// secondsPerRound is how many second containers there are for each round: with 30 the ratio of two runs differs by
// 0.02.
const secondsPerRound = 3

// pods makes the first container of a pod for each subject, and times others that come and go beside it.
func (b *bench) pods(ctx context.Context) (err error) {
	type pod struct {
		id     string
		member []oci.SpecOpts // of each further container
	}
	pods := make([]pod, len(b.subjects))
	for i, s := range b.subjects {
		ctx := namespaces.WithNamespace(ctx, s.host.namespace)
		id := b.id("pod")
		if _, err = s.host.client.SandboxStore().Create(ctx, sandbox.Sandbox{ID: id}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.host.client.SandboxStore().Delete(context.WithoutCancel(ctx), id)) }()
		var first *container
		if first, err = s.run(ctx, id, sleeping(harness.InPod(id, harness.PodFirst))); err != nil {
			return fmt.Errorf("%s: %w\n%s", s.name, err, s.host.logTail())
		}
		defer func() { err = errors.Join(err, first.remove(ctx)) }()
		pods[i] = pod{id: id, member: append(harness.Sharing(int(first.task.Pid())), harness.InPod(id, harness.PodOther))}
	}
	return b.turns(ctx, secondsPerRound*b.settings.Rounds, func(ctx context.Context, column int, s *subject) error {
		begin := time.Now()
		second, err := s.run(ctx, b.id("second"), sleeping(pods[column].member...),
			containerd.WithSandbox(pods[column].id))
		if err != nil {
			return err
		}
		b.add(rowSecond, column, milliseconds(time.Since(begin)))
		if err := second.remove(ctx); err != nil {
			return err
		}
		b.add(rowAlso, column, milliseconds(time.Since(begin)))
		return nil
	})
}
