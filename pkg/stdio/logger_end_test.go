// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestLogger_ThatGoesOnIsToldToEnd(t *testing.T) {
	l := newLogged(t, "binary-v2", "waits-for-sigterm", func(c *Config) { c.Host.bounds.leave = 10 * time.Millisecond })
	testx.Must(t, l.run("echo", "hello").Wait())
	l.drainAsDelete()
	within(t, "Close", func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close() = %v, want nil: the binary ended by itself", err)
		}
	})
	l.want("out", "hello\n")
	l.want("term", "seen")
	l.want("done", "")
}

func TestLogger_ThatDoesNotEndIsKilled(t *testing.T) {
	l := newLogged(t, "binary-v2", "stubborn", func(c *Config) {
		c.Host.bounds = bounds{ready: patience, leave: time.Millisecond, term: 50 * time.Millisecond}
	})
	testx.Must(t, l.run("echo", "hello").Wait())
	within(t, "Close", func() { // without Drain: also an interrupted Create ends the binary
		if err := l.Close(); !errors.Is(err, errdefs.ErrDataLoss) {
			t.Errorf("Close() = %v, want ErrDataLoss", err)
		}
	})
	l.wantGone()
}

// A binary that waits for a file system that does not answer is not ended by SIGKILL. Delete waits for Close.
func TestLogger_ThatSIGKILLDoesNotEndIsLeftBehind(t *testing.T) {
	l := newLogged(t, "binary-v2", "stubborn", func(c *Config) {
		c.Host.bounds = bounds{ready: patience, leave: time.Millisecond, term: time.Millisecond}
	})
	testx.Must(t, l.run("echo", "hello").Wait())
	release := trace(t, l.binary.process.Pid)
	within(t, "Close", func() {
		if err := l.Close(); !errors.Is(err, errdefs.ErrAborted) || !strings.Contains(err.Error(), "is left behind") {
			t.Errorf("Close() = %v, want ErrAborted, and that the binary is left behind", err)
		}
	})
	release()
	within(t, "the binary", func() { <-l.binary.exited })
}

// trace keeps the parent of a process from waiting for it until release.
func trace(t *testing.T, pid int) (release func()) {
	t.Helper()
	exe, err := os.Executable()
	testx.Must(t, err)
	tracer := exec.CommandContext(t.Context(), exe, loggerArg, "traces", "to", strconv.Itoa(pid))
	in, err := tracer.StdinPipe()
	testx.Must(t, err)
	out, err := tracer.StdoutPipe()
	testx.Must(t, err)
	testx.Must(t, tracer.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "<nil>\n" {
		t.Fatalf("trace %d: %q, %v", pid, line, err)
	}
	return func() {
		_ = in.Close() // the tracer sees the end
		if err := tracer.Wait(); err != nil {
			t.Errorf("tracer: %v", err)
		}
	}
}

// What the binary did not read while Drain waited it does not read later either, so Close does not wait for it again.
func TestLogger_ThatReadsNothingHasNoTimeAfterDrain(t *testing.T) {
	l := newLogged(t, "binary-v2", "stubborn", func(c *Config) {
		c.Host.bounds = bounds{ready: patience, leave: time.Hour, term: 300 * time.Millisecond}
	})
	process := l.process()
	l.started()
	testx.Eventually(t, "the binary runs", func() bool { _, err := os.Stat(l.to + ".pid"); return err == nil })
	write(t, process, pattern(2*bufferSize)) // both pipes are full
	testx.Eventually(t, "the copier is blocked", blocked)
	process.Close()
	wantDrainError(t, l.Streams, "drain stdout: N bytes and what is in the pipe are not handed on: context deadline exceeded")
	within(t, "Close", func() { _ = l.Close() }) // after Drain said that output is lost
	l.want("term", "seen")
	l.wantGone()
}

// Nobody is in a hurry until Delete: Close is what bounds the time of the binary.
func TestLogger_HasAllTheTimeBeforeClose(t *testing.T) {
	l := newLogged(t, "binary-v2", "slow", func(c *Config) {
		c.Host.bounds = bounds{ready: patience, leave: time.Millisecond, term: time.Millisecond}
	})
	text := pattern(2 * bufferSize)
	process := l.process()
	l.started()
	write(t, process, text)
	process.Close()
	within(t, "Drain", l.drain)
	l.want("out", text)
	l.want("done", "")
}

// wantGone checks that the binary, which told its pid, has ended.
func (l *logged) wantGone() {
	l.t.Helper()
	b, err := os.ReadFile(l.to + ".pid")
	if err != nil {
		l.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		l.t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		l.t.Errorf("logging binary %d after Close: %v, want none", pid, err)
	}
}
