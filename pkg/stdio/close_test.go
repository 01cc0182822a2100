// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// asleep reports whether n goroutines of this package wait in the poller.
func asleep(n int) func() bool {
	return func() bool { return strings.Count(goroutines(), "[IO wait") == n }
}

// blocked reports whether a copier waits for its sink.
func blocked() bool {
	for stack := range strings.SplitSeq(goroutines(), "\n\n") {
		if strings.Contains(stack, "[IO wait") && strings.Contains(stack, "(*pipeEnd).Write(") {
			return true
		}
	}
	return false
}

// flood writes to f until nobody reads any more.
func flood(f *os.File) {
	go func() { _, _ = io.Copy(f, zeros{}) }() // ends with EPIPE at Close, or with f's deadline
}

func TestClose_ReturnsWhereverTheCopyingStands(t *testing.T) {
	tests := []struct {
		name  string
		setUp func(t *testing.T) *env
	}{
		{"before Started", func(t *testing.T) *env {
			t.Helper()
			return newEnv(t, false, "stdin", "stdout", "stderr")
		}},
		{"all streams idle", func(t *testing.T) *env {
			t.Helper()
			r := newEnv(t, false, "stdin", "stdout", "stderr")
			r.run("sleep", "1000")
			testx.Eventually(t, "the copiers sleep", asleep(3))
			return r
		}},
		{"the reader of stdout does not read", func(t *testing.T) *env {
			t.Helper()
			r := newEnv(t, false, "stdout")
			r.client("stdout")
			process := r.process()
			r.started()
			flood(process)
			testx.Eventually(t, "the copier is blocked", blocked)
			return r
		}},
		{"the process does not read stdin", func(t *testing.T) *env {
			t.Helper()
			r := newEnv(t, false, "stdin")
			r.run("sleep", "1000")
			in := r.client("stdin")
			flood(in)
			testx.Eventually(t, "the copier is blocked", blocked)
			return r
		}},
		{"the process of a terminal does not read", func(t *testing.T) *env {
			t.Helper()
			r := newEnv(t, true, "stdin", "stdout")
			slave := openSlave(t, r.attach())
			tio, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			testx.Must(t, err)
			tio.Lflag &^= unix.ICANON | unix.ECHO // a terminal that reads by line drops what is too much
			testx.Must(t, unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, tio))
			r.started()
			flood(r.client("stdin"))
			testx.Eventually(t, "the copier is blocked", blocked)
			return r
		}},
		{"a terminal that nobody has open", func(t *testing.T) *env {
			t.Helper()
			r := newEnv(t, true, "stdin", "stdout")
			openSlave(t, r.attach()).Close()
			r.started()
			testx.Eventually(t, "the copiers sleep", asleep(2))
			return r
		}},
		{"output waits for its first reader", func(t *testing.T) *env {
			t.Helper()
			r := newEnv(t, false, "stdout")
			testx.Must(t, r.run("echo", "hello").Wait())
			testx.Eventually(t, "the copier hands over", func() bool {
				return strings.Contains(goroutines(), "(*fifoOutput).end")
			})
			return r
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.setUp(t)
			within(t, "Close", func() {
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						if err := r.Close(); err != nil {
							t.Errorf("Close() = %v, want nil", err)
						}
					})
				}
				all.Wait()
			})
			if stacks := goroutines(); strings.Contains(stacks, "(*copier)") {
				t.Errorf("Close returned before its goroutines:\n%s", stacks)
			}
		})
	}
}

func TestClose_WhatFollowsIsRefused(t *testing.T) {
	r := newEnv(t, false, "stdin", "stdout")
	r.started()
	if err := r.Started(); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("Started() again = %v, want ErrFailedPrecondition", err)
	}
	testx.Must(t, r.Close())
	r = newEnv(t, false, "stdin", "stdout")
	if err := errors.Join(r.Drain(t.Context()), r.Close()); err != nil { // without a process nothing is waited for
		t.Errorf("Drain, Close before Started: %v, want nil", err)
	}
	if err := r.Started(); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("Started() = %v, want ErrFailedPrecondition", err)
	}
	if err := errors.Join(r.CloseStdin(), r.CloseStdin(), r.Drain(t.Context()), r.Close()); err != nil {
		t.Errorf("CloseStdin, Drain, Close: %v, want nil", err)
	}
}

// Every method against every other, for the race detector and for deadlocks.
func TestStreams_MethodsAreSafeForConcurrentUse(t *testing.T) {
	for range 50 {
		r := newEnv(t, true, "stdin", "stdout")
		out := r.client("stdout")
		slave := openSlave(t, r.attach())
		var all sync.WaitGroup
		check := func(op string, err error) {
			if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsAborted(err) { // Close came first
				t.Errorf("%s() = %v", op, err)
			}
		}
		for _, f := range []func(){
			func() {
				if err := r.Started(); err != nil {
					check("Started", err)
					return
				}
				check("OpenStdin", r.OpenStdin())
			},
			func() { check("Resize", r.Resize(80, 25)) },
			func() { check("CloseStdin", r.CloseStdin()) },
			func() { check("Drain", r.Drain(t.Context())) },
			func() { _, _ = slave.WriteString("hello\n") },
			func() {
				if in, err := openFD(filepath.Join(r.dir, "stdin"), unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
					_, _ = unix.Write(in, []byte("hello\n"))
					_ = unix.Close(in)
				}
			},
			func() { _, _ = out.Read(make([]byte, 100)) },
			func() { check("Close", r.Close()) },
		} {
			all.Go(f)
		}
		within(t, "all at once", all.Wait)
	}
}
