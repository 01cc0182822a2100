// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The kinds of messages, as the program has them.
const (
	pidMessage    = 2
	readyMessage  = 3
	failedMessage = 4
)

// played is a run that the test plays the program of: processes that are children of the test, as the program's are.
func played(t *testing.T) (a *attempt, theirs *os.File, next *os.Process) {
	t.Helper()
	ours, theirs, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() }) // closed already is as good
	if err := unix.SetsockoptTimeval(int(theirs.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(testReaper.Suspend())
	var processes []*os.Process
	for range 2 {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		processes = append(processes, p)
	}
	return &attempt{config: Config{PID: true}, socket: ours, current: processes[0]}, theirs, processes[1]
}

func say(t *testing.T, socket *os.File, kind, value, step uint32) {
	t.Helper()
	var b []byte
	for _, word := range []uint32{kind, value, step} {
		b = binary.NativeEndian.AppendUint32(b, word)
	}
	if _, err := socket.Write(b); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, socket *os.File, size int) {
	t.Helper()
	b := make([]byte, size+1)
	if n, err := socket.Read(b); n != size || err != nil {
		t.Fatalf("the shim sent %d bytes, %v, want %d", n, err, size)
	}
}

// A child can say that it is ready, or that it failed, before its parent says which process it is.
func TestAChildThatIsFasterThanItsParent(t *testing.T) {
	t.Run("ready", func(t *testing.T) {
		a, theirs, next := played(t)
		done := make(chan error, 1)
		go func() { done <- a.run([]byte("request")) }()
		hear(t, theirs, len("request"))
		say(t, theirs, readyMessage, 0, 0)
		eventually(t, "the shim has read it", func() bool {
			n, err := unix.IoctlGetInt(int(theirs.Fd()), unix.SIOCOUTQ)
			return err == nil && n == 0
		})
		if n, _, err := unix.Recvfrom(int(theirs.Fd()), make([]byte, 1), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("the shim let %d processes go on that it does not know (%v)", n, err)
		}
		say(t, theirs, pidMessage, uint32(next.Pid), 0)
		hear(t, theirs, 1)
		_ = theirs.Close() // as the program does once it holds all
		if err := <-done; err != nil || a.current.Pid != next.Pid {
			t.Errorf("run = %v with process %d, want %d", err, a.current.Pid, next.Pid)
		}
		if err := a.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("failed", func(t *testing.T) {
		a, theirs, next := played(t)
		done := make(chan error, 1)
		go func() { done <- a.run([]byte("request")) }()
		hear(t, theirs, len("request"))
		say(t, theirs, failedMessage, uint32(unix.EINVAL), 10)
		say(t, theirs, pidMessage, uint32(next.Pid), 0)
		_ = theirs.Close() // both processes have ended
		if err := <-done; !errors.Is(err, unix.EINVAL) || a.current.Pid != next.Pid {
			t.Errorf("run = %v with process %d, want %v and %d, which is to be waited for", err, a.current.Pid, unix.EINVAL, next.Pid)
		}
		if err := a.end(); err != nil {
			t.Error(err)
		}
		if pids := children(t); len(pids) > 0 {
			t.Errorf("children %v are left", pids)
		}
	})
}
