// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
	"sandbox.internal/shim/pkg/stdio"
)

func TestCheckpoint_IsToldBeforeTheExitThatItCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		must(t, w.Checkpoint(ctx, process.CheckpointRequest{Path: "/one"}))
		must(t, w.Checkpoint(ctx, process.CheckpointRequest{Path: "/two", Exit: true}))
		w.wantStatus(w.Init(), 137)
		w.wantLog("… | checkpointed /one | checkpointed /two | exit c1 137")
	})
}

// A frozen process does not die.
func TestCheckpoint_OfAPausedContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		exit, kill bool
		want       bool // frozen afterwards
	}{
		"goes on":             {false, false, true},
		"ends":                {true, false, false},
		"is killed meanwhile": {false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := running(t, &processtest.Runtime{})
				must(t, w.Pause(ctx))
				entered, open := w.runtime.Hold("checkpoint")
				done := async(func() error {
					return w.Checkpoint(ctx, process.CheckpointRequest{Path: "/i", Exit: tc.exit})
				})
				<-entered
				if tc.kill {
					must(t, w.Init().Kill(syscall.SIGKILL))
					w.runtime.Containers()[0].SetFrozen(true) // as CRIU leaves it
				}
				open()
				must(t, <-done)
				if w.frozen() != tc.want {
					t.Errorf("frozen: %t, want %t", w.frozen(), tc.want)
				}
				if tc.want {
					w.wantState(w.Init(), process.Paused)
				}
			})
		})
	}
}

func TestCheckpoint_TellsNothingWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, &processtest.Runtime{}, process.Config{})
		broken := errors.New("no")
		w.runtime.Fail("checkpoint", broken)
		wantClass(t, w.Checkpoint(ctx, process.CheckpointRequest{Path: "/i"}), errdefs.ErrFailedPrecondition)
		must(t, w.Init().Start(ctx))
		wantClass(t, w.Checkpoint(ctx, process.CheckpointRequest{Path: "/i"}), broken)
		w.wantLog("…")
	})
}

func TestRestore_LivesAsAnyOtherContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := restoring(t, &processtest.Runtime{})
		if got := w.Init().Pid(); got != 0 {
			t.Errorf("pid before the restore = %d, want 0", got)
		}
		must(t, w.Init().Start(ctx))
		e := w.startExec("e1")
		w.exec(0).Die(0)
		w.wantStatus(e, 0)
		must(t, w.Init().Kill(syscall.SIGKILL))
		w.wantStatus(w.Init(), 137)
		if !slices.Equal(w.pids, []int{101}) || len(w.exits) != 1 {
			t.Errorf("recorded pids %v and exits %v, want 101 and one", w.pids, w.exits)
		}
		must(t, w.delete(w.Init()))
		w.wantLog("… | exec-added e1 | exec-started e1 | exit e1 0 | exit c1 137 | delete c1")
	})
}

// What needs a process is refused as long as there is none; a client that kills before it deletes takes
// FailedPrecondition for nothing to kill.
func TestRestore_HasNoProcessBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := restoring(t, &processtest.Runtime{})
		for name, err := range map[string]error{
			"kill":     w.Init().Kill(syscall.SIGKILL),
			"kill all": w.KillAll(ctx, syscall.SIGKILL),
			"pause":    w.Pause(ctx),
			"update":   w.Update(ctx, nil),
			"exec":     w.AddExec("e1", &specs.Process{}, stdio.Config{}),
		} {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%s = %v, want %v", name, err, errdefs.ErrFailedPrecondition)
			}
		}
		must(t, w.EndRestore(ctx))
		must(t, w.Init().CloseStdin())
		must(t, w.delete(w.Init()))
		w.wantLog("create c1 | delete c1")
	})
}

func TestRestore_ReleasesWaitersWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := restoring(t, &processtest.Runtime{})
		broken := errors.New("no")
		w.runtime.Fail("restore", broken)
		wantClass(t, w.Init().Start(ctx), broken)
		w.wantStatus(w.Init(), process.UnknownStatus)
		wantClass(t, w.Init().Kill(syscall.SIGKILL), errdefs.ErrNotFound)
		wantClass(t, w.Init().Start(ctx), errdefs.ErrFailedPrecondition)
		must(t, w.delete(w.Init()))
		w.wantLog("create c1 | delete c1")
	})
}
