// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

// freezes runs a test for each operation that waits for execs that are being started. An exec of the container is: its
// Start hangs until letGo, and then the exec runs and ends.
func freezes(t *testing.T, test func(t *testing.T, w *world, freeze func(context.Context) error, letGo func())) {
	t.Helper()
	for name, freeze := range map[string]func(context.Context, *world) error{
		"pause": func(ctx context.Context, w *world) error { return w.Pause(ctx) },
		"checkpoint": func(ctx context.Context, w *world) error {
			return w.Checkpoint(ctx, process.CheckpointRequest{Path: "/i"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, p, started, open := starting(t, &processtest.Runtime{}, "exec")
				test(t, w, func(ctx context.Context) error { return freeze(ctx, w) }, func() {
					open()
					must(t, <-started)
					w.of(p).Die(0)
					w.wantStatus(p, 0)
				})
			})
		})
	}
}

func TestFreeze_GivesUpOnAHungExecWithItsContext(t *testing.T) {
	freezes(t, func(t *testing.T, _ *world, freeze func(context.Context) error, letGo func()) {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		wantClass(t, freeze(short), context.DeadlineExceeded)
		letGo()
		must(t, freeze(ctx))
	})
}

// Who asks without a deadline does not keep later execs out for ever.
func TestFreeze_GivesUpOnAHungExecByItself(t *testing.T) {
	freezes(t, func(t *testing.T, w *world, freeze func(context.Context) error, letGo func()) {
		t.Helper()
		frozen := async(func() error { return freeze(ctx) })
		synctest.Wait() // it waits
		later := w.addExec("later")
		started := async(func() error { return later.Start(ctx) })
		wantClass(t, <-frozen, context.DeadlineExceeded)
		letGo()
		must(t, <-started)
	})
}

func TestExec_GivesUpWithItsContextWhileAFreezeWaits(t *testing.T) {
	freezes(t, func(t *testing.T, w *world, freeze func(context.Context) error, letGo func()) {
		t.Helper()
		frozen := async(func() error { return freeze(ctx) })
		synctest.Wait() // it waits
		later := w.addExec("later")
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		wantClass(t, later.Start(short), context.DeadlineExceeded)
		w.wantState(later, process.Created) // it was not tried
		letGo()
		must(t, <-frozen)
	})
}

// A freeze that waits has the turn that an exit takes.
func TestExit_OfInitEndsTheWaitForAHungExec(t *testing.T) {
	freezes(t, func(t *testing.T, w *world, freeze func(context.Context) error, letGo func()) {
		t.Helper()
		frozen := async(func() error { return freeze(ctx) })
		synctest.Wait() // it waits
		later := w.addExec("later")
		started := async(func() error { return later.Start(ctx) })
		synctest.Wait() // it waits behind
		w.init().Die(3)
		wantClass(t, <-frozen, errdefs.ErrFailedPrecondition)
		wantClass(t, <-started, errdefs.ErrFailedPrecondition)
		w.wantStatus(w.Init(), 3)
		letGo()
		w.wantLog("… | exec-added e1 | exec-added later | exit c1 3 | exec-started e1 | exit e1 0")
	})
}

// A freeze that is under way when SIGKILL comes would keep init from dying.
func TestPause_OfAContainerThatIsKilled(t *testing.T) {
	for name, failure := range map[string]error{
		"it succeeds": nil,
		"it fails":    errors.New("thawed while freezing"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := running(t, &processtest.Runtime{})
				w.runtime.Fail("pause", failure)
				entered, open := w.runtime.Hold("pause")
				paused := async(func() error { return w.Pause(ctx) })
				<-entered
				must(t, w.Init().Kill(syscall.SIGKILL))
				open()
				if failure == nil {
					must(t, <-paused)
				} else {
					wantClass(t, <-paused, errdefs.ErrFailedPrecondition)
				}
				if w.frozen() {
					t.Error("still frozen")
				}
			})
		})
	}
}

// A pause that fails leaves the container as it was.
func TestPause_CanBeTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		broken := errors.New("no")
		w.runtime.Fail("pause", broken)
		wantClass(t, w.Pause(ctx), broken)
		w.wantState(w.Init(), process.Running)
		w.runtime.Fail("pause", nil)
		must(t, w.Pause(ctx))
		w.wantState(w.Init(), process.Paused)
	})
}
