// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

func TestExec_IsNotStartedWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		e := w.addExec("e1")
		must(t, w.Pause(ctx))
		wantClass(t, e.Start(ctx), errdefs.ErrFailedPrecondition)
		w.wantState(e, process.Created) // it was not tried
		must(t, w.Resume(ctx))
		must(t, e.Start(ctx))
		w.wantState(e, process.Running)
		must(t, w.Pause(ctx))
		w.wantState(e, process.Paused)
		w.exec(0).Die(0)
	})
}

// P4, and P3 for an exec whose start is under way when init dies.
func TestExec_StartedWhileInitDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, started, open := starting(t, &processtest.Runtime{}, "exec")
		late := w.addExec("late")
		w.init().Die(0)
		synctest.Wait() // init's waiter now waits for e1
		wantClass(t, late.Start(ctx), errdefs.ErrFailedPrecondition)
		open()
		must(t, <-started)
		w.exec(0).Die(137)
		w.wantLog("… | exec-added e1 | exec-added late | exec-started e1 | exit e1 137 | exit c1 0")
	})
}

// containerd#10603. Init's waiter kills what shares the PID namespace once, and this exec comes into the cgroup after
// that.
func TestExec_StartedAfterTheStraysWereKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		list := func(pids string) { files(t, dir, map[string]string{"cgroup.procs": pids}) }
		list("")
		r := &processtest.Runtime{SharesPIDs: true, Group: cgroup.New(map[string]string{"": dir})}
		w, _, started, open := starting(t, r, "exec")
		w.init().Die(0)
		synctest.Wait() // the strays are killed

		body := sleeper(t) // a real one: the cgroup's Kill is
		list(strconv.Itoa(body.Process.Pid))
		go func() { // ends with body
			_ = body.Wait() // that it was killed is what is wanted
			if status, ok := body.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
				t.Errorf("the exec lived on after init, and ended by itself: %v", body.ProcessState)
			}
			list("")
			w.exec(0).Die(137)
		}()
		open()
		must(t, <-started)
		w.wantStatus(w.Init(), 0)
		w.wantLog("… | exec-added e1 | exec-started e1 | exit e1 137 | exit c1 0")
	})
}

// Nobody waits for what will never end: not the client of the exec, and not init's exit.
func TestExec_ThatCannotStart(t *testing.T) {
	broken := errors.New("no such program")
	for name, fail := range map[string]func(*processtest.Runtime){
		"an error": func(r *processtest.Runtime) { r.Fail("exec", broken) },
		"a panic":  func(r *processtest.Runtime) { r.Panic("exec") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := running(t, &processtest.Runtime{})
				fail(w.runtime)
				e := w.addExec("e1")
				func() {
					defer func() { _ = recover() }() // as the service does
					wantClass(t, e.Start(ctx), broken)
				}()
				w.wantStatus(e, process.UnknownStatus)
				wantClass(t, e.Start(ctx), errdefs.ErrFailedPrecondition)
				must(t, w.delete(e))
				began := time.Now()
				w.dies(0)
				if took := time.Since(began); took != 0 {
					t.Errorf("init's exit was told %v after it", took)
				}
				w.wantLog("… | exec-added e1 | exit c1 0")
			})
		})
	}
}

func TestExec_WhoseContainerDiesMeanwhileSaysSo(t *testing.T) {
	w := running(t, &processtest.Runtime{})
	w.runtime.Fail("exec", fmt.Errorf("join namespaces: %w", unix.ESRCH))
	err := w.addExec("e1").Start(ctx)
	wantClass(t, err, errdefs.ErrFailedPrecondition)
	wantClass(t, err, unix.ESRCH)
}

// Nobody deletes the execs of a containerd that died. What init wrote is for the one that comes next.
func TestExec_UnreadOutputIsGivenUpAndThatOfInitIsNot(t *testing.T) {
	w := running(t, &processtest.Runtime{})
	if got := w.addExec("e1").Status().IO.KeepUnread; got != process.UnreadTimeout {
		t.Errorf("unread output of an exec is kept %v, want %v", got, process.UnreadTimeout)
	}
	if got := w.Init().Status().IO.KeepUnread; got != 0 {
		t.Errorf("unread output of init is kept %v, want until Delete", got)
	}
}
