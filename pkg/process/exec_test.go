// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// P4, and P3 for an exec whose start is under way when init dies.
func TestExec_StartedWhileInitDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["exec"] = make(chan struct{})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		early, late := w.addExec(t, "early"), w.addExec(t, "late")
		started := make(chan error)
		go func() { started <- early.Start(ctx) }()
		<-f.entered
		f.init.die(0)
		synctest.Wait() // init's waiter now waits for early
		wantClass(t, late.Start(ctx), errdefs.ErrFailedPrecondition)
		close(f.gates["exec"])
		must(t, <-started)
		f.execs[0].die(137)
		w.wantLog(t, "create c1 | start c1 | exec-added early | exec-added late | exec-started early | exit early 137 | exit c1 0")
	})
}

// containerd#10603. Init's waiter kills what shares the PID namespace once, and
// this exec comes into the cgroup after that.
func TestExec_StartedAfterTheStraysWereKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		list := func(pids string) { must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pids), 0o600)) }
		list("")
		f := newFake()
		f.ownsPIDs, f.group = false, cgroup.New(map[string]string{"": dir})
		f.gates["exec"] = make(chan struct{})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		late := w.addExec(t, "late")
		started := make(chan error)
		go func() { started <- late.Start(ctx) }()
		<-f.entered
		f.init.die(0)
		synctest.Wait() // the strays are killed

		body := exec.Command("sleep", "5") // a real one: the cgroup's Kill is
		must(t, body.Start())
		list(strconv.Itoa(body.Process.Pid))
		go func() { // ends with body
			_ = body.Wait() // that it was killed is what is wanted
			if status, ok := body.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
				t.Errorf("the exec lived on after init, and ended by itself: %v", body.ProcessState)
			}
			list("")
			f.mu.Lock()
			defer f.mu.Unlock()
			f.execs[0].die(137)
		}()
		close(f.gates["exec"])
		must(t, <-started)
		_, err := w.Init().Wait(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | start c1 | exec-added late | exec-started late | exit late 137 | exit c1 0")
	})
}

func TestExec_ThatCannotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.failing["exec"] = errors.New("no such program")
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		e := w.addExec(t, "e1")
		if err := e.Start(ctx); !errors.Is(err, f.failing["exec"]) {
			t.Errorf("Start = %v, want %v", err, f.failing["exec"])
		}
		exit, err := e.Wait(ctx) // returns: who waits is not left hanging
		must(t, err)
		if exit.Status != unknownStatus {
			t.Errorf("status = %d, want %d", exit.Status, unknownStatus)
		}
		wantClass(t, e.Start(ctx), errdefs.ErrFailedPrecondition)
		_, err = w.DeleteExec(ctx, e)
		must(t, err)
		f.init.die(0) // is not kept waiting for e1
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exit c1 0")
	})
}

// Nobody waits for what will never end: not the client of the exec, and not init's exit.
func TestExec_WhoseStartPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.panics = "exec"
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		e := w.addExec(t, "e1")
		func() {
			defer func() { _ = recover() }() // as the service does
			_ = e.Start(ctx)
		}()
		_, err := e.Wait(ctx)
		must(t, err)
		began := time.Now()
		f.init.die(0)
		_, err = w.Init().Wait(ctx)
		must(t, err)
		if took := time.Since(began); took != 0 {
			t.Errorf("init's exit was told %v after it", took)
		}
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exit c1 0")
	})
}

// Nobody deletes the execs of a containerd that died. What init wrote is for the one that comes next.
func TestExec_WhoseContainerDiesMeanwhileSaysSo(t *testing.T) {
	f := newFake()
	f.failing["exec"] = fmt.Errorf("join namespaces: %w", unix.ESRCH)
	w := newWorld(t, f)
	must(t, w.Init().Start(ctx))
	if err := w.addExec(t, "e1").Start(ctx); !errdefs.IsFailedPrecondition(err) || !errors.Is(err, unix.ESRCH) {
		t.Errorf("Start = %v, want %v for %v", err, errdefs.ErrFailedPrecondition, unix.ESRCH)
	}
	f.init.die(0)
}

func TestExec_UnreadOutputIsGivenUpAndThatOfInitIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		if got := w.addExec(t, "e1").Status().IO.KeepUnread; got != unreadTimeout {
			t.Errorf("unread output of an exec is kept %v, want %v", got, unreadTimeout)
		}
		if got := w.Init().Status().IO.KeepUnread; got != 0 {
			t.Errorf("unread output of init is kept %v, want until Delete", got)
		}
		f.init.die(0)
	})
}
