// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whoever may trace the child before it is in its cgroups must not have it do anything outside of them.
func TestForkOutside_ChildIsStoppedUntilItHasEntered(t *testing.T) {
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, refusal := range []error{nil, errors.New("no entry")} {
		run, err := p.Start(held(t), [3]*os.File{})
		if err != nil {
			t.Fatal(err)
		}
		forks, child := 0, 0
		var request Request
		request.ForkOutside(func(pid int) error { forks = pid; return nil }, func(pid int) error {
			child = pid
			for end := time.Now().Add(time.Minute); time.Now().Before(end); runtime.Gosched() {
				if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); bytes.Contains(stat, []byte(") t ")) {
					return refusal
				}
			}
			return errors.New("the child is in no tracing stop")
		})
		request.Sleep()
		sleeping, err := run.Execute(t.Context(), &request)
		if !errors.Is(err, refusal) || err == nil && sleeping.Pid != child || child == forks {
			t.Errorf("Execute = %v, %v, want child %d of %d, %v", sleeping, err, child, forks, refusal)
		}
		if err != nil && isChild(child) == nil {
			t.Errorf("the child %d that was refused entry can be waited for, want that Execute did", child)
		}
		if err == nil {
			_, _ = sleeping.Kill(), sleeping.Release() // it sleeps for ever
			_, _ = unix.Wait4(child, nil, 0, nil)
		}
	}
}

// Else the child would go on outside of the cgroup, with nobody who moves it there.
func TestForkOutside_ChildDiesWithTheShim(t *testing.T) {
	const inShim = "TEST_NATIVE_SHIM"
	if os.Getenv(inShim) != "" {
		p, err := New("shim-test", "test")
		if err != nil {
			t.Fatal(err)
		}
		run, err := p.Start(held(t), [3]*os.File{})
		if err != nil {
			t.Fatal(err)
		}
		var request Request
		request.ForkOutside(nil, func(pid int) error { fmt.Fprintln(os.Stdout, pid); select {} })
		request.Sleep()
		_, err = run.Execute(context.Background(), &request)
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) //nolint:errcheck // it was possible before
	shim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	shim.Env = append(os.Environ(), inShim+"=1")
	out, err := shim.StdoutPipe()
	if err == nil {
		err = shim.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	_ = shim.Process.Kill()
	_ = shim.Wait()
	var status unix.WaitStatus
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		if n, err := unix.Wait4(child, &status, unix.WNOHANG, nil); n == child || err != nil && !errors.Is(err, unix.ECHILD) {
			break
		}
	}
	if !status.Signaled() || status.Signal() != unix.SIGKILL {
		_ = unix.Kill(child, unix.SIGKILL)
		t.Errorf("status of the child = %#x, want SIGKILL", status)
	}
}
