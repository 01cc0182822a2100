// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// freezers are what waits for execs that are being started.
var freezers = map[string]func(context.Context, *world) error{
	"pause":      func(ctx context.Context, w *world) error { return w.Pause(ctx) },
	"checkpoint": func(ctx context.Context, w *world) error { return w.Checkpoint(ctx, CheckpointRequest{Path: "/i"}) },
}

// hung is a running container with an exec whose start hangs until letGo is
// called; then the exec runs and ends.
func hung(t *testing.T) (w *world, letGo func()) {
	t.Helper()
	f := newFake()
	f.gates["exec"] = make(chan struct{})
	w = newWorld(t, f)
	must(t, w.Init().Start(ctx))
	e := w.addExec(t, "hung")
	started := make(chan error)
	go func() { started <- e.Start(ctx) }()
	<-f.entered
	return w, func() {
		close(f.gates["exec"])
		must(t, <-started)
		e.handle.(*fakeProcess).die(0)
		_, err := e.Wait(ctx)
		must(t, err)
	}
}

func TestFreeze_GivesUpOnAHungExecWithItsContext(t *testing.T) {
	for name, freeze := range freezers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, letGo := hung(t)
				short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				if err := freeze(short, w); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s = %v, want its deadline", name, err)
				}
				letGo()
				must(t, freeze(ctx, w))
				w.fake.init.die(0)
			})
		})
	}
}

// Who asks without a deadline does not keep later execs out for ever.
func TestPause_OfWhatIsBeingKilledSaysSo(t *testing.T) {
	f := newFake()
	f.gates["pause"], f.failing["pause"] = make(chan struct{}), errors.New("thawed while freezing")
	w := newWorld(t, f)
	must(t, w.Init().Start(ctx))
	paused := make(chan error)
	go func() { paused <- w.Pause(ctx) }()
	<-f.entered
	must(t, w.Init().Kill(syscall.SIGKILL))
	close(f.gates["pause"])
	if err := <-paused; !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Pause = %v, want %v", err, errdefs.ErrFailedPrecondition)
	}
}

func TestFreeze_GivesUpOnAHungExecByItself(t *testing.T) {
	for name, freeze := range freezers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, letGo := hung(t)
				frozen := make(chan error, 1)
				go func() { frozen <- freeze(ctx, w) }()
				synctest.Wait() // it waits
				started := make(chan error)
				later := w.addExec(t, "later")
				go func() { started <- later.Start(ctx) }()
				<-w.fake.entered
				if err := <-frozen; !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s = %v, want a deadline", name, err)
				}
				letGo()
				must(t, <-started)
				later.handle.(*fakeProcess).die(0)
				w.fake.init.die(0)
			})
		})
	}
}

func TestExec_GivesUpWithItsContextWhileAFreezeWaits(t *testing.T) {
	for name, freeze := range freezers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, letGo := hung(t)
				frozen := make(chan error)
				go func() { frozen <- freeze(ctx, w) }()
				synctest.Wait() // it waits
				later := w.addExec(t, "later")
				short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				if err := later.Start(short); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Start = %v, want its deadline", err)
				}
				if got := later.Status().State; got != Created {
					t.Errorf("exec is %v, want created: it was not tried", got)
				}
				letGo()
				must(t, <-frozen)
				w.fake.init.die(0)
			})
		})
	}
}

// A freeze that waits has the turn that an exit takes.
func TestExit_OfInitEndsTheWaitForAHungExec(t *testing.T) {
	for name, freeze := range freezers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, letGo := hung(t)
				frozen, started := make(chan error), make(chan error)
				go func() { frozen <- freeze(ctx, w) }()
				synctest.Wait() // it waits
				later := w.addExec(t, "later")
				go func() { started <- later.Start(ctx) }()
				synctest.Wait() // it waits behind
				w.fake.init.die(3)
				wantClass(t, <-frozen, errdefs.ErrFailedPrecondition)
				wantClass(t, <-started, errdefs.ErrFailedPrecondition)
				exit, err := w.Init().Wait(ctx)
				must(t, err)
				if exit.Status != 3 {
					t.Errorf("status = %d, want 3", exit.Status)
				}
				letGo()
				w.wantLog(t, "create c1 | start c1 | exec-added hung | exec-added later | exit c1 3 | exec-started hung | exit hung 0")
			})
		})
	}
}
