// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/inspect"
)

func TestLaunch_CountsExecsThatLibcontainerStarts(t *testing.T) {
	c := &container{initReason: "why"}
	if got, want := c.Launch(), (inspect.Launch{Init: inspect.ByLibcontainer, InitReason: "why"}); got != want {
		t.Errorf("launch = %+v, want %+v", got, want)
	}
	const n = 20
	var all sync.WaitGroup
	for range n {
		all.Go(func() { c.fellBack("because") })
	}
	all.Wait()
	c.fellBack("last")
	if got := c.Launch(); got.ExecsByLibcontainer != n+1 || got.ExecReason != "last" {
		t.Errorf("launch = %+v, want %d execs, and the last reason", got, n+1)
	}
	c.config.Checkpoint = "/image"
	if got := c.Launch(); got.Init != inspect.ByCRIU {
		t.Errorf("launch of a container that is restored = %+v", got)
	}
}

func TestKeep_TriesAgainWhatMaySucceedLater(t *testing.T) {
	calls := 0
	answers := []error{unix.EMFILE, unix.ENOMEM, nil, unix.EMFILE}
	f := keep(func() (int, error) { calls++; return calls, answers[calls-1] })
	for _, want := range answers[:2] {
		if _, err := f(); !errors.Is(err, want) {
			t.Errorf("error = %v, want %v", err, want)
		}
	}
	for range 3 {
		if n, err := f(); n != 3 || err != nil {
			t.Errorf("answer = %d, %v, want that of call 3", n, err)
		}
	}
	calls = 0
	f = keep(func() (int, error) { calls++; return 0, fmt.Errorf("too old: %w", errdefs.ErrNotImplemented) })
	for range 3 {
		if _, err := f(); !errdefs.IsNotImplemented(err) || calls != 1 {
			t.Errorf("error = %v after %d calls, want that of the first", err, calls)
		}
	}
}

func TestLauncher_IsMadeOnceThereIsADescriptor(t *testing.T) {
	r := New(testReaper)
	withoutDescriptors(t, func() {
		if _, err := r.launcher(); err == nil {
			t.Error("made without a descriptor")
		}
	})
	launcher, err := r.launcher()
	must(t, err)
	if again, err := r.launcher(); again != launcher || err != nil {
		t.Errorf("made again: %v", err)
	}
	must(t, launcher.Close())
}

// withoutDescriptors calls f while no file can be opened.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: before.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }()
	f()
}
