// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

// startHangs returns a container, and a process of it whose Start hangs in the named call of the runtime.
func startHangs(t *testing.T, call string) (w *world, p *Process, started chan error) {
	t.Helper()
	f := newFake()
	f.gates[call] = make(chan struct{})
	started = make(chan error, 1)
	if call == "restore" {
		w = restoring(t, f)
		p = w.Init()
	} else {
		w = newWorld(t, f)
		must(t, w.Init().Start(ctx))
		p = w.addExec(t, "e1")
	}
	go func() { started <- p.Start(ctx) }()
	<-f.entered
	return w, p, started
}

func TestKill_EndsAStart(t *testing.T) {
	for _, call := range []string{"exec", "restore"} {
		for name, kill := range map[string]func(*world, *Process) error{
			"kill":   func(_ *world, p *Process) error { return p.Kill(syscall.SIGKILL) },
			"delete": func(w *world, p *Process) error { return deleteOf(w, p) },
			"kill all": func(w *world, p *Process) error {
				if p == w.Init() {
					return w.KillAll(ctx, syscall.SIGKILL)
				}
				return p.Kill(syscall.SIGKILL)
			},
		} {
			t.Run(call+" by "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, p, started := startHangs(t, call)
					wantClass(t, p.Kill(syscall.SIGTERM), errdefs.ErrFailedPrecondition)
					must(t, kill(w, p))
					wantClass(t, <-started, errEndedByKill)
					exit, err := p.Wait(ctx)
					must(t, err)
					if exit.Status != unknownStatus {
						t.Errorf("status = %d, want %d", exit.Status, unknownStatus)
					}
					if name != "delete" {
						must(t, deleteOf(w, p))
					}
					if p == w.Init() {
						w.wantLog(t, "create c1 | delete c1")
						return
					}
					w.wantLog(t, "create c1 | start c1 | exec-added e1")
					w.fake.init.die(0)
				})
			})
		}
	}
}

func deleteOf(w *world, p *Process) error {
	if p == w.Init() {
		_, err := w.Delete(ctx)
		return err
	}
	_, err := w.DeleteExec(ctx, p)
	return err
}

// The program ran before the runtime learned of the kill.
func TestKill_EndsWhatHasJustStarted(t *testing.T) {
	for _, call := range []string{"exec", "restore"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.deaf = true
				f.gates[call] = make(chan struct{})
				w := restoring(t, f)
				p := w.Init()
				if call == "exec" {
					must(t, p.Start(ctx))
					p = w.addExec(t, "e1")
				}
				started := make(chan error, 1)
				go func() { started <- p.Start(ctx) }()
				<-f.entered
				must(t, p.Kill(syscall.SIGKILL))
				close(f.gates[call])
				must(t, <-started)
				exit, err := p.Wait(ctx)
				must(t, err)
				if exit.Status != 137 {
					t.Errorf("status = %d, want 137", exit.Status)
				}
				if p != w.Init() {
					f.init.die(0)
				}
			})
		})
	}
}

// It waits for a freeze, and has asked the runtime for nothing yet.
func TestKill_EndsAStartThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		p := w.addExec(t, "e1")
		f.gates["pause"] = make(chan struct{})
		paused, started := make(chan error, 1), make(chan error, 1)
		go func() { paused <- w.Pause(ctx) }()
		<-f.entered
		go func() { started <- p.Start(ctx) }()
		synctest.Wait()
		must(t, p.Kill(syscall.SIGKILL))
		wantClass(t, <-started, errEndedByKill)
		_, err := p.Wait(ctx)
		must(t, err)
		wantClass(t, p.Start(ctx), errdefs.ErrFailedPrecondition)
		close(f.gates["pause"])
		must(t, <-paused)
		f.init.die(0)
	})
}

// abandoned returns a container whose Start hangs, and has no caller any more.
func abandoned(t *testing.T) (f *fake, w *world, started chan error) {
	t.Helper()
	f = newFake()
	w = newWorld(t, f)
	f.gates["start"] = make(chan struct{})
	short, leave := context.WithCancel(ctx)
	started = make(chan error, 1)
	go func() { started <- w.Init().Start(short) }()
	<-f.entered
	leave()
	synctest.Wait()
	return f, w, started
}

// A container whose program runs must not be shown as created.
func TestStart_OfInitGoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w, started := abandoned(t)
		close(f.gates["start"])
		must(t, <-started)
		if got := w.Init().Status().State; got != Running {
			t.Errorf("state = %v, want running", got)
		}
		_, err := w.Delete(ctx)
		wantClass(t, err, errdefs.ErrFailedPrecondition)
		f.init.die(0)
		w.wantLog(t, "create c1 | start c1 | exit c1 0")
	})
}

func TestStart_DoesNotBeginForACallerThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		gone, leave := context.WithCancel(ctx)
		leave()
		wantClass(t, w.Init().Start(gone), context.Canceled)
		if got := w.Init().Status().State; got != Created {
			t.Errorf("state = %v, want created", got)
		}
		w.fake.init.die(0)
	})
}

func TestDelete_KillsAnInitWhoseStartWasAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w, started := abandoned(t)
		deleted := make(chan error, 1)
		go func() { deleted <- deleteOf(w, w.Init()) }()
		synctest.Wait()
		f.init.mu.Lock()
		if !slices.Equal(f.init.heard, []syscall.Signal{syscall.SIGKILL}) {
			t.Errorf("while Start hangs init heard %v, want SIGKILL", f.init.heard)
		}
		f.init.mu.Unlock()
		f.failing["start"] = errors.New("init is dead")
		close(f.gates["start"])
		wantClass(t, <-started, f.failing["start"])
		must(t, <-deleted)
		w.wantLog(t, "create c1 | exit c1 137 | delete c1")
	})
}

// leaving is a hook during which the caller goes away.
type leaving struct {
	NoHook
	leave context.CancelFunc
}

func (h leaving) Created(context.Context, RuntimeContainer, Handle) error {
	h.leave()
	return nil
}

func TestNew_FailsIfItsContextEndsWhileHooksRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, newFake())
		short, leave := context.WithCancel(ctx)
		if _, err := New(short, f, w.queue, Config{ID: "c2", Hooks: []Hook{leaving{leave: leave}}}); !errors.Is(err, context.Canceled) {
			t.Errorf("New = %v, want %v", err, context.Canceled)
		}
		if !f.init.dead() {
			t.Error("init lives")
		}
		w.fake.init.die(0)
		w.wantLog(t, "create c1 | exit c1 0")
	})
}

// waiting is a hook that waits for the test.
type waiting struct {
	NoHook
	entered, leave chan struct{}
}

func (h waiting) Created(context.Context, RuntimeContainer, Handle) error {
	close(h.entered)
	<-h.leave
	return nil
}

// What is restored runs before the hooks that come after do.
func TestKill_OfARestoreWhoseCallerHasGone(t *testing.T) {
	for name, kill := range map[string]func(*world) error{
		"kill":     func(w *world) error { return w.Init().Kill(syscall.SIGKILL) },
		"kill all": func(w *world) error { return w.KillAll(ctx, syscall.SIGKILL) },
		"delete":   func(w *world) error { return deleteOf(w, w.Init()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := waiting{entered: make(chan struct{}), leave: make(chan struct{})}
				w := newWorldOf(t, newFake(), Config{ID: "c1", Bundle: "/b", Checkpoint: "/i", Hooks: []Hook{h}})
				short, leave := context.WithCancel(ctx)
				started, killed := make(chan error, 1), make(chan error, 1)
				go func() { started <- w.Init().Start(short) }()
				<-h.entered
				leave()
				synctest.Wait()
				go func() { killed <- kill(w) }()
				synctest.Wait()
				close(h.leave)
				must(t, <-started)
				must(t, <-killed)
				exit, err := w.Init().Wait(ctx)
				must(t, err)
				if exit.Status != 137 {
					t.Errorf("status = %d, want 137", exit.Status)
				}
			})
		})
	}
}
