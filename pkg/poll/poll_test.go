// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package poll_test

import (
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/poll"
)

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func signal(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: not within 10 s", what)
	}
}

func TestOnDeath_CallsForTheEndOfEachProcess(t *testing.T) {
	t.Parallel()
	for range 100 {
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{}, 2)
		poll.OnDeath(cmd.Process, func() { ended <- struct{}{} })
		within(t, "the end of a process", ended)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if len(ended) > 0 {
			t.Fatal("it was called twice")
		}
	}
}

// A process that cannot be watched has its waiter at once.
func TestOnDeath_OfAProcessThatIsGone(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	poll.OnDeath(cmd.Process, func() { close(ended) })
	within(t, "the waiter", ended)
}

func TestOnce_RefusesWhatCannotBeWatched(t *testing.T) {
	t.Parallel()
	if _, err := poll.Once(-1, func() { t.Error("called for no descriptor") }); err == nil {
		t.Error("descriptor -1 is watched")
	}
}

// Each event is told, though nobody reads the descriptor, and none after stop.
func TestEach_CallsForEachEventUntilStop(t *testing.T) {
	t.Parallel()
	fd, other := eventfd(t), eventfd(t)
	called := make(chan struct{}, 100)
	var stopped atomic.Bool
	stop, err := poll.Each(fd, unix.EPOLLIN, func() {
		if stopped.Load() {
			t.Error("called after stop")
		}
		called <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		signal(t, fd)
		within(t, "an event", called)
	}
	stop()
	stopped.Store(true)
	signal(t, fd)
	if _, err := poll.Once(other, func() { called <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	signal(t, other)
	within(t, "an event that came later", called)
}
