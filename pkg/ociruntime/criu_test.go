// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/stdio"
)

// fakeCriu puts a program of that name first in PATH.
func fakeCriu(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, criu.Program)
	must(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755)) //nolint:gosec // a program is executable
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestCreate_RefusesWhatIsNoCheckpoint(t *testing.T) {
	fakeCriu(t)
	c := newConfig(t, "true")
	c.Checkpoint = t.TempDir()
	_, err := New(testReaper).Create(t.Context(), c, nil)
	wantError(t, err, errdefs.ErrInvalidArgument, c.Checkpoint, "inventory.img")
	wantNothingLeft(t, c)
}

// A criu that fails stands for one that the kernel is too new for.
func TestRestore_FailureLeavesNothing(t *testing.T) {
	fakeCriu(t)
	c := image(t)
	r, err := New(testReaper).Create(t.Context(), c, nil)
	must(t, err)
	streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
	must(t, err)
	t.Cleanup(func() { must(t, streams.Close()) })
	if _, err := r.Restore(t.Context(), streams); err == nil {
		t.Error("Restore with a criu that fails = nil, want an error")
	}
	must(t, r.Destroy())
	must(t, r.Destroy())
	if left, _ := filepath.Glob(filepath.Join(c.Bundle, "criu-*")); len(left) > 0 { // the pattern is well formed
		t.Errorf("left in the bundle: %v", left)
	}
	wantNothingLeft(t, c)
}

// The context ends when the restore is as good as done, and nothing is left that
// would make libcontainer give up. The race detector sees in every other round
// what is shared with who kills the members meanwhile.
func TestRestore_IsUndoneWhenItsContextEndedMeanwhile(t *testing.T) {
	wantNoLeaks(t)
	for range 3 {
		restored, let := restoringCriu(t)
		c := image(t)
		r, err := testRuntime.Create(t.Context(), c, nil)
		must(t, err)
		streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := r.Restore(ctx, streams)
			done <- err
		}()
		eventually(t, "what is restored", func() bool {
			_, err := os.Stat(restored)
			return err == nil || len(done) > 0 // it failed early
		})
		cancel()
		let()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Restore = %v, want %v", err, context.Canceled)
		}
		must(t, r.Destroy())
		must(t, streams.Close())
		wantNothingLeft(t, c)
	}
}

// libcontainer mounts the root file system, with the volumes in it, in the state directory while criu restores. A shim that
// is killed meanwhile leaves it there, and who removes the directory must not remove the files.
func TestRemove_AfterTheShimDiedInARestoreLeavesTheFiles(t *testing.T) {
	for _, tc := range []struct {
		name     string
		halfMade bool // the shim died before the state was written
	}{
		{name: "with a state"},
		{name: "without a state", halfMade: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			restored, let := restoringCriu(t)
			c := image(t)
			kept := filepath.Join(c.Rootfs, "tmp", "kept")
			must(t, os.WriteFile(kept, nil, 0o600))
			killedShim(t, life{Config: c, Stage: "restored"}, restored)
			let()
			state := filepath.Join(c.Root, c.ID)
			if _, err := os.Stat(filepath.Join(state, "criu-root", "tmp", "kept")); err != nil {
				t.Fatalf("nothing is mounted in the state directory, so the test proves nothing: %v", err)
			}
			if tc.halfMade {
				lc, err := libcontainer.Load(c.Root, c.ID)
				must(t, err)
				init, err := lc.State()
				must(t, err)
				must(t, unix.Kill(init.InitProcessPid, unix.SIGKILL)) // in a cgroup where Remove does not look
				must(t, os.Remove(filepath.Join(state, "state.json")))
			}
			must(t, Remove(bounded(t), c))
			if _, err := os.Stat(kept); err != nil {
				t.Errorf("a file of the root file system is gone: %v", err)
			}
			wantNothingLeft(t, c)
		})
	}
}

func wantError(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error = %v, want one of class %v", err, class)
	}
	wantText(t, err, words...)
}
