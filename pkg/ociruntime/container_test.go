// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The first process of a PID namespace is not ended by a signal that it does not handle (pid_namespaces(7)).
func TestSignal_RightAfterStartIsForTheProgram(t *testing.T) {
	for range 5 {
		b := create(t, newConfig(t, "sleep", "1000")).start()
		must(t, b.Init().Signal(unix.SIGTERM))
		c := b.RuntimeContainer.(*container)
		eventually(t, "the time when its program runs, or it is dead", func() bool { c.AwaitProgram(); return !c.awaitsProgram.Load() })
		must(t, b.Init().Signal(unix.SIGKILL))
		if exit := b.wait(); exit.Status != 137 {
			t.Errorf("exit status = %d, want 137: SIGTERM was for sleep, and ignored", exit.Status)
		}
	}
}

// A postStart hook may look at process 1, or signal it. In the middle of execve the kernel shows the new program
// without arguments for a moment.
func TestExec_RightAfterStartSeesTheProgram(t *testing.T) {
	const script = `line=; while [ -z "$line" ]; do line=$(tr '\0' ' ' </proc/1/cmdline); done; echo "$line"`
	for range 5 {
		b := create(t, newConfig(t, "sleep", "1000")).start()
		if got, want := b.exec(t.Context(), command("sh", "-c", script)), "sleep 1000 \n"; got.out != want {
			t.Errorf("exec = %+v, want that it sees %q", got, want)
		}
	}
}

// Nothing waits for ever for a program of libcontainer's name, which a container can give to its own.
func TestSignal_DoesNotWaitForAProgramWithTheNameOfTheStage(t *testing.T) {
	const name = "runc:[2:INIT]"
	config := newConfig(t, "/bin/"+name)
	must(t, os.WriteFile(filepath.Join(config.Rootfs, "bin", name), []byte("#!/bin/sh\nsleep 1000\n"), 0o755)) //nolint:gosec // a program is executable
	b := create(t, config).start()
	c := b.RuntimeContainer.(*container)
	eventually(t, "that the program is seen", func() bool {
		must(t, b.Init().Signal(unix.SIGCONT))
		return !c.awaitsProgram.Load()
	})
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", b.Init().Pid()))
	must(t, err)
	if got := string(comm); got != name+"\n" {
		t.Errorf("init is called %q, want %q", got, name)
	}
}

// Its hook keeps it from becoming its program.
func TestSignal_AndExecDoNotWaitForHooks(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	config.Spec.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", "1000"}}}}
	b := create(t, config).start()
	for what, do := range map[string]func() error{
		"a signal": func() error { return b.Init().Signal(unix.SIGCONT) },
		"an exec":  func() error { return b.exec(t.Context(), command("true")).err },
	} {
		began := time.Now()
		must(t, do())
		if took := time.Since(began); took < programHookTimeout || took > 20*programHookTimeout {
			t.Errorf("%s took %v, want %v", what, took, programHookTimeout)
		}
	}
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
}
