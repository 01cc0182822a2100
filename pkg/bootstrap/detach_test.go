// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/unixfile"
)

func TestStart_ThatCannotAnswerLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		stdout     func() (*os.File, error)
	}{
		{"full", "no space left on device", func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) }},
		{"containerd hung up", "broken pipe", func() (*os.File, error) {
			r, w, err := os.Pipe()
			return w, errors.Join(err, r.Close())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newEnv(t)
			cmd := w.command(w.bundle("c1", ""), w.params("c1"), "start")
			stdout, err := tt.stdout()
			testx.Must(t, err)
			defer func() { _ = stdout.Close() }() // nothing can be written to it
			var stderr strings.Builder
			cmd.Stdout, cmd.Stderr = stdout, &stderr
			if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("start = %v, %q, want exit code 1, and %q in what it says", err, stderr.String(), tt.want)
			}
			if got, left := len(w.daemons()), w.sockets(); got != 0 || len(left) != 0 {
				t.Errorf("%d daemons and sockets %q, want nothing", got, left)
			}
		})
	}
}

// The answer would go into whatever has the descriptors next.
func TestStart_WithoutStandardStreamsLeavesNothing(t *testing.T) {
	w := newEnv(t)
	cmd := w.command(w.bundle("c1", ""), w.params("c1"), "start")
	shell := []string{"sh", "-c", `exec "$0" "$@" <&- >&- 2>&-`}
	cmd.Path, cmd.Args = "/bin/sh", append(shell, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Stdin = nil
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("start = %v, want exit code 1", err)
	}
	if got, left := len(w.daemons()), w.sockets(); got != 0 || len(left) != 0 {
		t.Errorf("%d daemons and sockets %q, want nothing", got, left)
	}
}

// childOf waits for the only child of process pid.
func childOf(t *testing.T, pid int) (child int) {
	t.Helper()
	children := fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)
	for end := time.Now().Add(time.Minute); child == 0; <-time.After(time.Millisecond) {
		text, err := os.ReadFile(children)
		if err != nil || time.Now().After(end) {
			t.Fatalf("no child of start: %v", err)
		}
		_, _ = fmt.Sscan(string(text), &child) // none yet
	}
	return child
}

// awaitThreads waits until process pid, a Go program, has more threads than that which began.
func awaitThreads(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if len(threads) > 1 {
			return
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("process %d has %d threads: %v", pid, len(threads), err)
		}
	}
}

// containerd waits for one process, and the daemon begins in its child. A lock on the socket directory holds both up.
func TestStart_ThatIsKilled(t *testing.T) {
	for name, ofChild := range map[string]bool{"the process that containerd waits for": false, "its child": true} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t)
			unlock, err := unixfile.Lock(t.Context(), w.mkdir("s"))
			testx.Must(t, err)
			defer unlock()
			cmd := w.command(w.bundle("c1", ""), w.params("c1"), "start")
			testx.Must(t, cmd.Start())
			child := childOf(t, cmd.Process.Pid)
			awaitThreads(t, child) // detach.c has it killed with its parent before there is a second one
			victim := cmd.Process.Pid
			if ofChild {
				victim = child
			}
			testx.Must(t, unix.Kill(victim, unix.SIGKILL))
			err = cmd.Wait()
			if ofChild && cmd.ProcessState.ExitCode() != 128+int(unix.SIGKILL) {
				t.Errorf("start = %v, want exit status %d", err, 128+int(unix.SIGKILL))
			}
			if !ofChild { // adopted; the lock would hold it for much longer than this test may take
				var status unix.WaitStatus
				if _, err := unix.Wait4(child, &status, 0, nil); err != nil || !status.Signaled() {
					t.Errorf("the child ended with status %#x, %v, want it killed", status, err)
				}
			}
			if got, left := len(w.daemons()), w.sockets(); got != 0 || len(left) != 0 {
				t.Errorf("%d daemons and sockets %q, want nothing", got, left)
			}
		})
	}
}

// Its exit code is that of a child, which the kernel does not keep where SIGCHLD is ignored.
func TestStart_ByWhoIgnoresSIGCHLD(t *testing.T) {
	w := newEnv(t)
	b := w.bundle("c1", "")
	first := w.shim(b, w.params("c1"), "start")
	cmd := w.command(b, w.params("c1"), "start")
	cmd.Args = append([]string{"env", "--ignore-signal=CHLD", cmd.Path}, cmd.Args[1:]...)
	var err error
	if cmd.Path, err = exec.LookPath("env"); err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != first.stdout {
		t.Errorf("start that joins = %q, %v, want the answer %q", out, err, first.stdout)
	}
}
