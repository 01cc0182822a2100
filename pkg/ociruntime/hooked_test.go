// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// hooked is a Runtime with a function of a test that is called before a call
// begins. It forces an order: what the function waits for has happened before,
// and what happens after it returned is concurrent.
type hooked struct {
	process.Runtime
	before func(call string) // pause, resume, update, signal (to init)
}

func (e hooked) Create(ctx context.Context, c process.Config, s *stdio.Streams) (process.RuntimeContainer, error) {
	r, err := e.Runtime.Create(ctx, c, s)
	if err != nil {
		return nil, err
	}
	return hookedRuntime{r, e.before}, nil
}

type hookedRuntime struct {
	process.RuntimeContainer
	before func(call string)
}

func (r hookedRuntime) Pause() error {
	r.before("pause")
	return r.RuntimeContainer.Pause()
}

func (r hookedRuntime) Resume() error {
	r.before("resume")
	return r.RuntimeContainer.Resume()
}

func (r hookedRuntime) Update(resources *specs.LinuxResources) error {
	r.before("update")
	return r.RuntimeContainer.Update(resources)
}

func (r hookedRuntime) Init() process.Handle {
	return hookedHandle{r.RuntimeContainer.Init(), r.before}
}

type hookedHandle struct {
	process.Handle
	before func(call string)
}

func (h hookedHandle) Signal(sig syscall.Signal) error {
	h.before("signal")
	return h.Handle.Signal(sig)
}

// started is a container of e as the sandbox has it, with its lifecycle. It is
// gone at the end of the test.
func started(t *testing.T, e process.Runtime, config process.Config) *process.Container {
	t.Helper()
	t.Cleanup(func() { wantNothingLeft(t, config) })
	ctx := context.Background() // outlives the test's
	queue := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	t.Cleanup(func() { must(t, queue.Close(ctx)) })
	c, err := process.New(ctx, e, queue, config)
	must(t, err)
	t.Cleanup(func() {
		_ = c.Init().Kill(syscall.SIGKILL) // dead already is as good
		within(t, "init's exit", c.Init().Exited())
		_, err := c.Delete(ctx)
		must(t, err)
	})
	must(t, c.Init().Start(ctx))
	return c
}
