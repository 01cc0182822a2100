// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
)

var (
	ctx             = context.Background()
	must, wantClass = testx.Must, testx.WantError
)

// world is a container over a fake runtime, with the events that were published. It is its own record.
type world struct {
	noRecord
	*process.Container
	t         *testing.T
	runtime   *processtest.Runtime
	queue     *event.Queue
	pids      []int          // of init, as Created was told
	exits     []process.Exit // of init, as Exited was told
	removed   int            // calls of Remove
	removeErr error

	mu      sync.Mutex
	journal []string
	answer  func() error // to a delete event; nil takes it
}

func (w *world) Created(pid int) { w.pids = append(w.pids, pid) }

func (w *world) Exited(exit process.Exit) { w.exits = append(w.exits, exit) }

func (w *world) Remove() error {
	w.removed++
	return w.removeErr
}

// noRecord is a [process.Record] that keeps nothing.
type noRecord struct{}

func (noRecord) Begin() error        { return nil }
func (noRecord) Created(int)         {}
func (noRecord) Exited(process.Exit) {}
func (noRecord) Remove() error       { return nil }
func (noRecord) Deleted()            {}

// newWorld makes a container, whose processes die with the test at the latest.
func newWorld(t *testing.T, r *processtest.Runtime, config process.Config) *world {
	t.Helper()
	w := &world{t: t, runtime: r}
	w.queue = event.NewQueue(w.publish)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.queue.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	config.ID, config.Bundle, config.Record = "c1", "/b", w
	config.MayRestore = func() error { return nil }
	c, err := process.New(t.Context(), r, w.queue, config)
	must(t, err)
	w.Container = c
	t.Cleanup(func() {
		execs, _ := r.Containers()[0].Execs()
		for _, p := range append(execs, w.init()) {
			if p != nil {
				p.Die(0)
			}
		}
	})
	return w
}

// running makes a container and starts it.
func running(t *testing.T, r *processtest.Runtime) *world {
	t.Helper()
	w := newWorld(t, r, process.Config{})
	must(t, w.Init().Start(ctx))
	return w
}

// restoring makes a container that its Start restores.
func restoring(t *testing.T, r *processtest.Runtime) *world {
	t.Helper()
	return newWorld(t, r, process.Config{Checkpoint: "/i"})
}

// init is the first process; nil before it is restored.
func (w *world) init() *processtest.Process { return w.runtime.Containers()[0].First() }

// exec is the i-th exec that was started.
func (w *world) exec(i int) *processtest.Process {
	execs, _ := w.runtime.Containers()[0].Execs()
	return execs[i]
}

// of is the process of an exec that was started.
func (w *world) of(p *process.Process) *processtest.Process {
	execs, _ := w.runtime.Containers()[0].Execs()
	return execs[slices.IndexFunc(execs, func(e *processtest.Process) bool { return e.Pid() == p.Pid() })]
}

func (w *world) frozen() bool { return w.runtime.Containers()[0].Frozen() }

func (w *world) addExec(execID string) *process.Process {
	w.t.Helper()
	must(w.t, w.AddExec(execID, &specs.Process{}, stdio.Config{}))
	p, err := w.Process(execID)
	must(w.t, err)
	return p
}

func (w *world) startExec(execID string) *process.Process {
	w.t.Helper()
	p := w.addExec(execID)
	must(w.t, p.Start(ctx))
	return p
}

// dies ends init, and waits until its exit is published.
func (w *world) dies(status int) {
	w.t.Helper()
	w.init().Die(status)
	w.wantStatus(w.Init(), status)
}

func (w *world) delete(p *process.Process) error {
	if p == w.Init() {
		_, err := w.Delete(ctx)
		return err
	}
	_, err := p.DeleteExec(ctx)
	return err
}

// wantStatus waits for the exit of p.
func (w *world) wantStatus(p *process.Process, want int) {
	w.t.Helper()
	exit, err := p.Wait(ctx)
	must(w.t, err)
	if exit.Status != want {
		w.t.Errorf("status = %d, want %d", exit.Status, want)
	}
}

func (w *world) wantState(p *process.Process, want process.State) {
	w.t.Helper()
	if got := p.Status().State; got != want {
		w.t.Errorf("state = %v, want %v", got, want)
	}
}

// wantLog compares the events that were published. In want, … stands for those of a container that was started.
func (w *world) wantLog(want string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	want = strings.Replace(want, "…", "create c1 | start c1", 1)
	if got := strings.Join(w.journal, " | "); got != want {
		w.t.Errorf("events:\n got  %s\n want %s", got, want)
	}
}

// answerDelete sets the answer to delete events from now on.
func (w *world) answerDelete(f func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

func (w *world) publish(_ context.Context, e event.Event, _ time.Time) error {
	w.mu.Lock()
	answer := w.answer
	w.mu.Unlock()
	if _, isDelete := e.(event.TaskDelete); isDelete && answer != nil {
		if err := answer(); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, describe(e))
	return nil
}

func describe(e event.Event) string {
	switch e := e.(type) {
	case event.TaskCreate:
		return "create " + e.ContainerID
	case event.TaskStart:
		return "start " + e.ContainerID
	case event.TaskExit:
		return fmt.Sprintf("exit %s %d", e.ID, e.Status)
	case event.TaskDelete:
		return "delete " + e.ID
	case event.TaskExecAdded:
		return "exec-added " + e.ExecID
	case event.TaskExecStarted:
		return "exec-started " + e.ExecID
	case event.TaskCheckpointed:
		return "checkpointed " + e.Checkpoint
	case event.TaskPaused:
		return "paused"
	case event.TaskResumed:
		return "resumed"
	}
	return fmt.Sprintf("%T", e)
}

// async runs f, whose error comes on the channel.
func async(f func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}
