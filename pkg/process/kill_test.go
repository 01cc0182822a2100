// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
)

func TestKill_ThawsAPausedContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f := newFake()
		f.group = cgroup.New(map[string]string{"freezer": dir})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		must(t, w.Pause(ctx))
		must(t, w.Init().Kill(syscall.SIGKILL))
		state, err := os.ReadFile(filepath.Join(dir, freezerState))
		must(t, err)
		if !strings.HasPrefix(string(state), "THAWED") {
			t.Errorf("%s = %q, want THAWED", freezerState, state)
		}
		w.wantLog(t, "create c1 | start c1 | paused | exit c1 137")
	})
}

// Init may be late to die, for lack of CPU time.
func TestKill_OfInitLetsNoExecStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		synctest.Wait()
		late := w.Init().handle.(*fakeProcess)
		w.Init().handle = lateProcess{late}
		p := w.addExec(t, "e1")
		must(t, w.Init().Kill(syscall.SIGKILL))
		wantClass(t, p.Start(ctx), errdefs.ErrFailedPrecondition)
		late.die(137)
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exit c1 137")
	})
}

// lateProcess takes no notice of SIGKILL.
type lateProcess struct{ *fakeProcess }

func (lateProcess) Signal(syscall.Signal) error { return nil }

func TestKillAll_WithoutCgroupKillsInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		must(t, w.KillAll(ctx, syscall.SIGKILL))
		w.wantLog(t, "create c1 | start c1 | exit c1 137")
	})
}

// A process in uninterruptible sleep stays in the cgroup, which a file does for it here. A client need not have set a
// bound on the call.
func TestKillAll_DoesNotWaitForeverForAProcessThatStays(t *testing.T) {
	other := exec.Command("sleep", "1000")
	must(t, other.Start())
	defer func() { _, _ = other.Process.Wait() }() // it was killed
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendln(nil, other.Process.Pid), 0o600))
		f := newFake()
		f.group = cgroup.New(map[string]string{"freezer": dir})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		killed := make(chan error, 1)
		go func() { killed <- w.KillAll(ctx, syscall.SIGKILL) }()
		synctest.Wait()
		if len(f.init.heard) != 1 {
			t.Errorf("meanwhile init heard %v, want one signal", f.init.heard)
		}
		began := time.Now()
		must(t, <-killed)
		if took := time.Since(began); took != remainingTimeout {
			t.Errorf("KillAll returned after %v, want %v", took, remainingTimeout)
		}
	})
}

func TestKillAll_WaitsForTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.group = cgroup.New(map[string]string{"": t.TempDir()})
		f.gates["await program"] = make(chan struct{})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		killed := make(chan error, 1)
		go func() { killed <- w.KillAll(ctx, syscall.SIGTERM) }()
		<-f.entered
		close(f.gates["await program"])
		must(t, <-killed)
		if len(f.init.heard) > 0 {
			t.Errorf("signals to init itself = %v, want none", f.init.heard)
		}
		f.init.die(0)
	})
}

// An exec that is being started would be made in a frozen cgroup.
func TestKillAll_FreezesNothingWhileAnExecStarts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		start  bool
		frozen bool
	}{
		{"no exec", false, true},
		{"an exec", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			other := exec.Command("sleep", "1000")
			must(t, other.Start())
			defer func() { _ = other.Wait() }() // it was signalled
			dir := t.TempDir()
			for name, text := range map[string]string{
				"cgroup.procs": fmt.Sprintln(other.Process.Pid), "cgroup.freeze": "0\n", "cgroup.events": "frozen 1\n",
			} {
				must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			freeze, before := filepath.Join(dir, "cgroup.freeze"), time.Unix(1, 0)
			must(t, os.Chtimes(freeze, before, before))
			f := newFake()
			f.group = cgroup.New(map[string]string{"": dir})
			w := newWorld(t, f)
			must(t, w.Init().Start(ctx))
			if tc.start {
				must(t, w.starts.enter(ctx))
				defer w.starts.leave()
			}
			must(t, w.KillAll(ctx, syscall.SIGTERM))
			info, err := os.Stat(freeze)
			must(t, err)
			if frozen := !info.ModTime().Equal(before); frozen != tc.frozen {
				t.Errorf("the cgroup was frozen: %t, want %t", frozen, tc.frozen)
			}
			f.init.die(0)
		})
	}
}
