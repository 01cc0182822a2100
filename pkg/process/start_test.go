// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

// starting returns a container, and a process of it whose Start hangs in the named call of the runtime until open.
func starting(t *testing.T, r *processtest.Runtime, call string) (
	w *world, p *process.Process, started chan error, open func(),
) {
	t.Helper()
	entered, open := r.Hold(call)
	if call == "restore" {
		w = restoring(t, r)
		p = w.Init()
	} else {
		w = running(t, r)
		p = w.addExec("e1")
	}
	started = async(func() error { return p.Start(ctx) })
	<-entered
	return w, p, started, open
}

// kills are the ways to kill a process.
var kills = map[string]func(*world, *process.Process) error{
	"kill":   func(_ *world, p *process.Process) error { return p.Kill(syscall.SIGKILL) },
	"delete": func(w *world, p *process.Process) error { return w.delete(p) },
	"kill all": func(w *world, p *process.Process) error {
		if p == w.Init() {
			return w.KillAll(ctx, syscall.SIGKILL)
		}
		return p.Kill(syscall.SIGKILL)
	},
	"end of the restore": func(w *world, p *process.Process) error {
		if p == w.Init() {
			return w.EndRestore(ctx)
		}
		return p.Kill(syscall.SIGKILL)
	},
}

func TestKill_EndsAStart(t *testing.T) {
	for _, call := range []string{"exec", "restore"} {
		for name, kill := range kills {
			t.Run(call+" by "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, p, started, _ := starting(t, &processtest.Runtime{}, call)
					w.wantState(p, process.Created)
					wantClass(t, p.Kill(syscall.SIGTERM), errdefs.ErrFailedPrecondition)
					must(t, kill(w, p))
					wantClass(t, <-started, process.ErrEndedByKill)
					w.wantStatus(p, process.UnknownStatus)
					if name != "delete" {
						must(t, w.delete(p))
					}
					w.wantLog(map[string]string{"exec": "… | exec-added e1", "restore": "create c1 | delete c1"}[call])
				})
			})
		}
	}
}

// The program ran before the runtime learned of the kill.
func TestKill_EndsWhatHasJustStarted(t *testing.T) {
	for _, call := range []string{"exec", "restore"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, p, started, open := starting(t, &processtest.Runtime{Stubborn: true}, call)
				must(t, p.Kill(syscall.SIGKILL))
				open()
				must(t, <-started)
				w.wantStatus(p, 137)
			})
		})
	}
}

// It waits for a freeze, and has asked the runtime for nothing yet.
func TestKill_EndsAStartThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		p := w.addExec("e1")
		entered, open := w.runtime.Hold("pause")
		paused := async(func() error { return w.Pause(ctx) })
		<-entered
		started := async(func() error { return p.Start(ctx) })
		synctest.Wait()
		must(t, p.Kill(syscall.SIGKILL))
		wantClass(t, <-started, process.ErrEndedByKill)
		w.wantStatus(p, process.UnknownStatus)
		wantClass(t, p.Start(ctx), errdefs.ErrFailedPrecondition)
		open()
		must(t, <-paused)
	})
}

// A container whose program runs must not be shown as created.
func TestStart_OfInitGoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &processtest.Runtime{}, process.Config{})
		entered, open := w.runtime.Hold("start")
		short, leave := context.WithCancel(ctx)
		started := async(func() error { return w.Init().Start(short) })
		<-entered
		leave()
		synctest.Wait()
		open()
		must(t, <-started)
		w.wantState(w.Init(), process.Running)
		wantClass(t, w.delete(w.Init()), errdefs.ErrFailedPrecondition)
		w.init().Die(0)
		w.wantLog("… | exit c1 0")
	})
}

func TestStart_DoesNotBeginForACallerThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &processtest.Runtime{}, process.Config{})
		gone, leave := context.WithCancel(ctx)
		leave()
		wantClass(t, w.Init().Start(gone), context.Canceled)
		w.wantState(w.Init(), process.Created)
	})
}

func TestDelete_KillsAnInitThatIsNotStarted(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("its Start hangs: %t", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, &processtest.Runtime{}, process.Config{})
				entered, open := w.runtime.Hold("start")
				started := make(chan error, 1)
				if hangs {
					started = async(func() error { return w.Init().Start(ctx) })
					<-entered
				}
				deleted := async(func() error { return w.delete(w.Init()) })
				synctest.Wait()
				if got := w.runtime.Signals(); !slices.Equal(got, []syscall.Signal{syscall.SIGKILL}) {
					t.Errorf("init was sent %v, want SIGKILL", got)
				}
				dead := errors.New("init is dead")
				w.runtime.Fail("start", dead)
				open()
				must(t, <-deleted)
				if hangs {
					wantClass(t, <-started, dead)
				}
				w.wantLog("create c1 | exit c1 137 | delete c1")
			})
		})
	}
}

// created is a hook that calls a function when init exists.
type created struct {
	process.NoHook
	call func()
}

func (h created) Created(context.Context, process.RuntimeContainer, process.Handle) error {
	h.call()
	return nil
}

func TestNew_FailsIfItsContextEndsWhileHooksRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &processtest.Runtime{}
		w := newWorld(t, &processtest.Runtime{}, process.Config{})
		short, leave := context.WithCancel(ctx)
		config := process.Config{ID: "c2", Hooks: []process.Hook{created{call: leave}}, Record: noRecord{}}
		_, err := process.New(short, r, w.queue, config)
		wantClass(t, err, context.Canceled)
		if !r.Containers()[0].First().Reaped() {
			t.Error("init lives")
		}
		w.wantLog("create c1")
	})
}

// What is restored runs before the hooks that come after do.
func TestKill_OfARestoreWhoseCallerHasGone(t *testing.T) {
	for name, kill := range kills {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				entered, goOn := make(chan struct{}), make(chan struct{})
				h := created{call: func() { close(entered); <-goOn }}
				w := newWorld(t, &processtest.Runtime{}, process.Config{Checkpoint: "/i", Hooks: []process.Hook{h}})
				short, leave := context.WithCancel(ctx)
				started := async(func() error { return w.Init().Start(short) })
				<-entered
				leave()
				synctest.Wait()
				killed := async(func() error { return kill(w, w.Init()) })
				synctest.Wait()
				close(goOn)
				must(t, <-started)
				must(t, <-killed)
				w.wantStatus(w.Init(), 137)
			})
		})
	}
}
