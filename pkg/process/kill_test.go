// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

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
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

func TestKill_ThawsAPausedContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		w := running(t, &processtest.Runtime{Group: cgroup.New(map[string]string{"freezer": dir})})
		must(t, w.Pause(ctx))
		must(t, w.Init().Kill(syscall.SIGKILL))
		state, err := os.ReadFile(filepath.Join(dir, processtest.FreezerState))
		must(t, err)
		if !strings.HasPrefix(string(state), "THAWED") {
			t.Errorf("%s = %q, want THAWED", processtest.FreezerState, state)
		}
		w.wantLog("… | paused | exit c1 137")
	})
}

// Init may be late to die, for lack of CPU time.
func TestKill_OfInitLetsNoExecStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.runtime.SetDeaf(func(syscall.Signal) bool { return true })
		p := w.addExec("e1")
		must(t, w.Init().Kill(syscall.SIGKILL))
		wantClass(t, p.Start(ctx), errdefs.ErrFailedPrecondition)
		w.init().Die(137)
		w.wantLog("… | exec-added e1 | exit c1 137")
	})
}

func TestKillAll_WithoutCgroupKillsInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		must(t, w.KillAll(ctx, syscall.SIGKILL))
		w.wantLog("… | exit c1 137")
	})
}

// sleeper is a real process, which the test ends.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	return cmd
}

// files writes the files of a cgroup.
func files(t *testing.T, dir string, text map[string]string) {
	t.Helper()
	for name, text := range text {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

// A process in uninterruptible sleep stays in the cgroup, which a file does for it here. A client need not have set a
// bound on the call.
func TestKillAll_DoesNotWaitForeverForAProcessThatStays(t *testing.T) {
	other := sleeper(t)
	defer func() { _ = other.Wait() }() // it was killed
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		files(t, dir, map[string]string{"cgroup.procs": fmt.Sprintln(other.Process.Pid)})
		w := running(t, &processtest.Runtime{Group: cgroup.New(map[string]string{"freezer": dir})})
		killed := async(func() error { return w.KillAll(ctx, syscall.SIGKILL) })
		synctest.Wait()
		if got := w.runtime.Signals(); len(got) != 1 {
			t.Errorf("meanwhile init was sent %v, want one signal", got)
		}
		began := time.Now()
		must(t, <-killed)
		if took := time.Since(began); took != process.RemainingTimeout {
			t.Errorf("KillAll returned after %v, want %v", took, process.RemainingTimeout)
		}
	})
}

// An exec that is being started would be made in a frozen cgroup.
func TestKillAll_WithAnotherSignalFreezesNothing(t *testing.T) {
	other := sleeper(t)
	defer func() { _ = other.Wait() }() // it was signalled
	dir := t.TempDir()
	files(t, dir, map[string]string{
		"cgroup.procs": fmt.Sprintln(other.Process.Pid), "cgroup.freeze": "0\n", "cgroup.events": "frozen 1\n",
	})
	freeze, before := filepath.Join(dir, "cgroup.freeze"), time.Unix(1, 0)
	must(t, os.Chtimes(freeze, before, before))
	w := running(t, &processtest.Runtime{Group: cgroup.New(map[string]string{"": dir})})
	must(t, w.KillAll(ctx, syscall.SIGTERM))
	info, err := os.Stat(freeze)
	must(t, err)
	if got := w.runtime.Signals(); len(got) > 0 || !info.ModTime().Equal(before) {
		t.Errorf("init itself was sent %v, and cgroup.freeze was written at %v, want neither", got, info.ModTime())
	}
}
