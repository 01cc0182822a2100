// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// What is in a bundle.
const (
	specFile  = "config.json"
	rootfsDir = "rootfs"
)

// newRuntime makes containers without a kernel, whose processes die of all signals but these.
func newRuntime(deafTo ...syscall.Signal) *processtest.Runtime {
	r := &processtest.Runtime{PID: 4321}
	r.SetDeaf(func(sig syscall.Signal) bool { return slices.Contains(deafTo, sig) })
	return r
}

// newTasks is a registry whose events go to told, in a goroutine of its own.
func newTasks(t *testing.T, e *processtest.Runtime, told func(event.Event)) *task.Manager {
	t.Helper()
	queue := event.NewQueue(func(_ context.Context, ev event.Event, _ time.Time) error { told(ev); return nil })
	t.Cleanup(func() { testx.Must(t, queue.Close(context.Background())) })
	tasks := task.New(e, queue, stdio.NewHost("ns", noReaper{}))
	tasks.KeepIndex("/nowhere", "/the/socket", nil)
	return tasks
}

func goodSpec() *specs.Spec {
	return &specs.Spec{
		Root:    &specs.Root{Path: rootfsDir},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/c"},
	}
}

// noReaper is for a process that reaps no orphans.
type noReaper struct{ stdio.Children }

func (noReaper) Suspend() (resume func()) { return func() {} }
