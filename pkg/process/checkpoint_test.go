// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

func TestCheckpoint_IsToldBeforeTheExitThatItCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		must(t, w.Checkpoint(ctx, CheckpointRequest{Path: "/one"}))
		must(t, w.Checkpoint(ctx, CheckpointRequest{Path: "/two", Exit: true}))
		_, err := w.Init().Wait(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | start c1 | checkpointed /one | checkpointed /two | exit c1 137")
	})
}

func TestCheckpoint_LeavesAPausedContainerPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		must(t, w.Pause(ctx))
		must(t, w.Checkpoint(ctx, CheckpointRequest{Path: "/i"}))
		if got := w.Init().Status().State; got != Paused || !f.frozen {
			t.Errorf("state = %v, frozen = %t, want paused and frozen", got, f.frozen)
		}
		must(t, w.Checkpoint(ctx, CheckpointRequest{Path: "/i", Exit: true}))
		if f.frozen {
			t.Error("container is frozen after a checkpoint that ends it; it cannot die")
		}
		f.init.die(0)
	})
}

func TestCheckpoint_OfAPausedContainerThawsAfterAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["checkpoint"] = make(chan struct{})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		must(t, w.Pause(ctx))
		done := make(chan error)
		go func() { done <- w.Checkpoint(ctx, CheckpointRequest{Path: "/i"}) }()
		<-f.entered
		must(t, w.Init().Kill(syscall.SIGKILL))
		f.mu.Lock()
		f.frozen = true // as CRIU leaves it
		f.mu.Unlock()
		close(f.gates["checkpoint"])
		must(t, <-done)
		if f.frozen {
			t.Error("killed container is frozen after the checkpoint; it cannot die")
		}
	})
}

func TestCheckpoint_TellsNothingWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.failing["checkpoint"] = errors.New("no")
		w := newWorld(t, f)
		wantClass(t, w.Checkpoint(ctx, CheckpointRequest{Path: "/i"}), errdefs.ErrFailedPrecondition)
		must(t, w.Init().Start(ctx))
		wantClass(t, w.Checkpoint(ctx, CheckpointRequest{Path: "/i"}), f.failing["checkpoint"])
		w.wantLog(t, "create c1 | start c1")
		f.init.die(0)
	})
}

func restoring(t *testing.T, f *fake) *world {
	t.Helper()
	return newWorldOf(t, f, Config{ID: "c1", Bundle: "/b", Checkpoint: "/i"})
}

func TestRestore_LivesAsAnyOtherContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := restoring(t, newFake())
		if got := w.Init().Pid(); got != 0 {
			t.Errorf("pid before the restore = %d, want 0", got)
		}
		must(t, w.Init().Start(ctx))
		e := w.addExec(t, "e1")
		must(t, e.Start(ctx))
		w.fake.execs[0].die(0)
		_, err := e.Wait(ctx)
		must(t, err)
		must(t, w.Init().Kill(syscall.SIGKILL))
		exit, err := w.Init().Wait(ctx)
		must(t, err)
		if exit.Status != 137 {
			t.Errorf("status = %d, want 137", exit.Status)
		}
		if !slices.Equal(w.pids, []int{101}) || len(w.exits) != 1 {
			t.Errorf("recorded pids %v and exits %v, want 101 and one", w.pids, w.exits)
		}
		_, err = w.Delete(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exec-started e1 | exit e1 0 | exit c1 137 | delete c1")
	})
}

// What needs a process is refused as long as there is none; a client that kills
// before it deletes takes FailedPrecondition for nothing to kill.
func TestRestore_HasNoProcessBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := restoring(t, newFake())
		wantClass(t, w.Init().Kill(syscall.SIGKILL), errdefs.ErrFailedPrecondition)
		wantClass(t, w.KillAll(ctx, syscall.SIGKILL), errdefs.ErrFailedPrecondition)
		wantClass(t, w.Pause(ctx), errdefs.ErrFailedPrecondition)
		wantClass(t, w.Update(ctx, nil), errdefs.ErrFailedPrecondition)
		wantClass(t, w.AddExec("e1", nil, w.Init().io), errdefs.ErrFailedPrecondition)
		must(t, w.Init().CloseStdin())
		_, err := w.Delete(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | delete c1")
	})
}

func TestRestore_ReleasesWaitersWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.failing["restore"] = errors.New("no")
		w := restoring(t, f)
		wantClass(t, w.Init().Start(ctx), f.failing["restore"])
		exit, err := w.Init().Wait(ctx)
		must(t, err)
		if exit.Status != unknownStatus {
			t.Errorf("status = %d, want %d", exit.Status, unknownStatus)
		}
		wantClass(t, w.Init().Kill(syscall.SIGKILL), errdefs.ErrNotFound)
		wantClass(t, w.Init().Start(ctx), errdefs.ErrFailedPrecondition)
		_, err = w.Delete(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | delete c1")
	})
}
