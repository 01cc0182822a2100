// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// TestMain makes the test process a subreaper, as the shim is.
func TestMain(m *testing.M) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "prctl(PR_SET_CHILD_SUBREAPER):", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// orphan makes a process that is dead and whose parent is the test: its own
// parent, a shell, has gone before it.
func orphan(t *testing.T, r *Reaper) int {
	t.Helper()
	release := r.Suspend()
	defer release()
	// The grandchild waits on a pipe, so that it dies when the test says so.
	read, write, err := os.Pipe()
	testx.Must(t, err)
	defer write.Close()
	cmd := exec.Command("/bin/sh", "-c", "cat >/dev/null 2>&1 <&3 & echo $!")
	cmd.ExtraFiles = []*os.File{read}
	out, err := cmd.Output()
	_ = read.Close()
	testx.Must(t, err)
	var pid int
	_, err = fmt.Sscan(string(out), &pid)
	testx.Must(t, err)
	return pid
}

func exists(pid int) bool { return unix.Kill(pid, 0) == nil }

func run(t *testing.T, r *Reaper) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestReaper_ReapsAnOrphan(t *testing.T) {
	r := New()
	run(t, r)
	pid := orphan(t, r)
	testx.Eventually(t, "the orphan is reaped", func() bool { return !exists(pid) })
}

func TestRegister_LeavesTheChildToItsWaiter(t *testing.T) {
	r := New()
	run(t, r)
	for range 100 {
		release := r.Suspend()
		cmd := exec.Command("/bin/sh", "-c", "exit 7")
		testx.Must(t, cmd.Start())
		r.Register(cmd.Process.Pid)
		release()
		err := cmd.Wait()
		r.Unregister(cmd.Process.Pid)
		if got := cmd.ProcessState.ExitCode(); got != 7 {
			t.Fatalf("exit code = %d, want 7 (%v)", got, err)
		}
	}
}

// A dead orphan may hide behind a dead child that is owned: the kernel shows
// one at a time.
func TestUnregister_ReapsOrphansBehindTheChild(t *testing.T) {
	r := New()
	run(t, r)
	release := r.Suspend()
	cmd := exec.Command("/bin/true")
	testx.Must(t, cmd.Start())
	r.Register(cmd.Process.Pid)
	release()
	testx.Eventually(t, "the owned child is dead", func() bool { return state(t, cmd.Process.Pid) == "Z" })
	pid := orphan(t, r)
	testx.Eventually(t, "the orphan is dead", func() bool { s := state(t, pid); return s == "Z" || s == "" })
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the owned child's status was stolen: %v", err)
	}
	r.Unregister(cmd.Process.Pid)
	testx.Eventually(t, "the orphan is reaped", func() bool { return !exists(pid) })
}

// Who only waited for a child would go on reaping as long as a container makes orphans.
func TestUnregister_LeavesOrphansToRun(t *testing.T) {
	r := New()
	pid := orphan(t, r)
	testx.Eventually(t, "the orphan is dead", func() bool { return state(t, pid) == "Z" })
	r.Suspend()()
	r.Register(pid + 1)
	r.Unregister(pid + 1)
	if got := state(t, pid); got != "Z" {
		t.Errorf("the state of the orphan is %q, want Z: nobody has called Run", got)
	}
	run(t, r)
	testx.Eventually(t, "the orphan is reaped", func() bool { return !exists(pid) })
}

func TestSuspend_KeepsUnregisteredChildren(t *testing.T) {
	r := New()
	run(t, r)
	release := r.Suspend()
	cmd := exec.Command("/bin/true")
	testx.Must(t, cmd.Start())
	testx.Eventually(t, "the child is dead", func() bool { return state(t, cmd.Process.Pid) == "Z" })
	r.reap()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the child's status was stolen: %v", err)
	}
	release()
}

// state is the process state letter of proc(5), or empty when pid is gone.
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}

// A process that cannot be watched, for lack of descriptors, is waited for inside Reap.
func TestFreeze_GivesUpWhileSomebodyWaitsInsideReap(t *testing.T) {
	r := New()
	inside, exit, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		r.Reap(func() { close(inside); <-exit })
	}()
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 5*freezePoll)
	defer cancel()
	if thaw, err := r.Freeze(ctx); thaw != nil || !errdefs.IsUnavailable(err) {
		t.Errorf("Freeze = %v, want an error of class unavailable", err)
	}
	r.Reap(func() {}) // as before
	close(exit)
	<-done
	thaw, err := r.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	thaw()
	r.Reap(func() {})
}
