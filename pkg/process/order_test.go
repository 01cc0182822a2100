// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

func TestContainer_WholeLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		e := w.startExec("e1")
		w.exec(0).Die(3)
		w.wantStatus(e, 3)
		must(t, w.delete(e))
		w.dies(0)
		status, err := w.Delete(ctx)
		must(t, err)
		if status.Pid != 101 || status.Exit.Status != 0 {
			t.Errorf("Delete = %+v, want pid 101 and status 0", status)
		}
		if len(w.exits) != 1 {
			t.Errorf("exits recorded: %v, want one", w.exits)
		}
		w.wantLog("… | exec-added e1 | exec-started e1 | exit e1 3 | exit c1 0 | delete c1")
	})
}

// P1: the process dies while Start is still under way.
func TestExit_BeforeStartReturnsIsToldAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &processtest.Runtime{}
		entered, open := r.Hold("start")
		w := newWorld(t, r, process.Config{})
		started := async(func() error { return w.Init().Start(ctx) })
		<-entered
		w.init().Die(1)
		w.wantLog("create c1")
		open()
		must(t, <-started)
		w.wantLog("… | exit c1 1")
	})
}

// P2: the same for an exec, whose waiter exists only after its start.
func TestExit_OfAnExecThatDiesAtOnceIsToldAfterItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.startExec("e1")
		w.exec(0).Die(0)
		w.init().Die(0)
		w.wantLog("… | exec-added e1 | exec-started e1 | exit e1 0 | exit c1 0")
	})
}

// P3: init is dead, an exec is not yet.
func TestExit_OfInitWaitsForExecs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.startExec("e1")
		w.startExec("e2")
		w.init().Die(0)
		const before = "… | exec-added e1 | exec-started e1 | exec-added e2 | exec-started e2"
		w.wantLog(before)
		w.exec(1).Die(137)
		w.wantLog(before + " | exit e2 137")
		w.exec(0).Die(137)
		w.wantLog(before + " | exit e2 137 | exit e1 137 | exit c1 0")
	})
}

// P3 has a bound, because a process in uninterruptible sleep may never die.
func TestExit_OfInitIsToldWhenAnExecDoesNotDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.startExec("e1")
		begin := time.Now()
		w.dies(0)
		if took := time.Since(begin); took != process.ExecExitTimeout {
			t.Errorf("init's exit told after %v, want %v", took, process.ExecExitTimeout)
		}
		w.exec(0).Die(137)
		w.wantLog("… | exec-added e1 | exec-started e1 | exit c1 0 | exit e1 137")
	})
}

// An operation that hangs in the kernel does not keep State, Kill and Wait from answering.
func TestContainer_StateKillAndWaitAnswerWhileOthersHang(t *testing.T) {
	for call, tc := range map[string]struct {
		do   func(*world) error
		want process.State
	}{
		"start":   {func(w *world) error { return w.Init().Start(ctx) }, process.Created},
		"pause":   {func(w *world) error { return w.Pause(ctx) }, process.Pausing},
		"update":  {func(w *world) error { return w.Update(ctx, nil) }, process.Running},
		"destroy": {func(w *world) error { return w.delete(w.Init()) }, process.Stopped},
	} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, &processtest.Runtime{}, process.Config{})
				if call != "start" {
					must(t, w.Init().Start(ctx))
				}
				if call == "destroy" {
					w.dies(0)
				}
				entered, open := w.runtime.Hold(call)
				done := async(func() error { return tc.do(w) })
				<-entered
				begin := time.Now()
				w.wantState(w.Init(), tc.want)
				if call == "destroy" {
					wantClass(t, w.Init().Kill(syscall.SIGTERM), errdefs.ErrNotFound)
				} else {
					must(t, w.Init().Kill(syscall.SIGTERM))
				}
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if _, err := w.Init().Wait(short); call != "destroy" && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Wait = %v, want its deadline", err)
				}
				if took := time.Since(begin); took > time.Second {
					t.Errorf("answers took %v", took)
				}
				open()
				must(t, <-done)
			})
		})
	}
}

// A caller that gives up does not keep its place in the queue.
func TestContainer_OperationGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		entered, open := w.runtime.Hold("update")
		updated := async(func() error { return w.Update(ctx, nil) })
		<-entered
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		wantClass(t, w.Pause(short), context.DeadlineExceeded)
		open()
		must(t, <-updated)
	})
}

// P5. The kernel may kill as soon as init runs its program, before Start knows that it does.
func TestContainer_TellsAnOOMAfterTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &processtest.Runtime{}
		entered, open := r.Hold("start")
		w := newWorld(t, r, process.Config{})
		started := async(func() error { return w.Init().Start(ctx) })
		<-entered
		w.OOMKilled()
		synctest.Wait()
		open()
		must(t, <-started)
		w.dies(137)
		w.wantLog("… | event.TaskOOM | exit c1 137")
	})
}

func TestContainer_TellsAnOOMBeforeAnExitWithoutAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &processtest.Runtime{}, process.Config{})
		w.OOMKilled()
		w.dies(137)
		w.wantLog("create c1 | event.TaskOOM | exit c1 137")
	})
}
