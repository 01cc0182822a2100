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

var ctx = context.Background()

func (w *world) wantLog(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := w.journal.String(); got != want {
		t.Errorf("events:\n got  %s\n want %s", got, want)
	}
}

func TestContainer_WholeLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		e := w.addExec(t, "e1")
		must(t, e.Start(ctx))
		w.fake.execs[0].die(3)
		exit, err := e.Wait(ctx)
		must(t, err)
		if exit.Status != 3 {
			t.Errorf("exec's status = %d, want 3", exit.Status)
		}
		_, err = w.DeleteExec(ctx, e)
		must(t, err)
		w.fake.init.die(0)
		_, err = w.Init().Wait(ctx)
		must(t, err)
		status, err := w.Delete(ctx)
		must(t, err)
		if status.Pid != 101 || status.Exit.Status != 0 {
			t.Errorf("Delete = %+v, want pid 101 and status 0", status)
		}
		if len(w.exits) != 1 {
			t.Errorf("exits recorded: %v, want one", w.exits)
		}
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exec-started e1 | exit e1 3 | exit c1 0 | delete c1")
	})
}

// P1: the process dies while Start is still under way.
func TestExit_BeforeStartReturnsIsToldAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["start"] = make(chan struct{})
		w := newWorld(t, f)
		started := make(chan error)
		go func() { started <- w.Init().Start(ctx) }()
		<-f.entered
		f.init.die(1)
		<-f.init.reaped
		w.wantLog(t, "create c1")
		close(f.gates["start"])
		must(t, <-started)
		_, err := w.Init().Wait(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | start c1 | exit c1 1")
	})
}

// P2: the same for an exec, whose waiter exists only after its start.
func TestExit_OfAnExecThatDiesAtOnceIsToldAfterItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		e := w.addExec(t, "e1")
		must(t, e.Start(ctx))
		w.fake.execs[0].die(0)
		w.fake.init.die(0)
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exec-started e1 | exit e1 0 | exit c1 0")
	})
}

// P3: init is dead, an exec is not yet.
func TestExit_OfInitWaitsForExecs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		must(t, w.addExec(t, "e1").Start(ctx))
		must(t, w.addExec(t, "e2").Start(ctx))
		w.fake.init.die(0)
		const before = "create c1 | start c1 | exec-added e1 | exec-started e1 | exec-added e2 | exec-started e2"
		w.wantLog(t, before)
		w.fake.execs[1].die(137)
		w.wantLog(t, before+" | exit e2 137")
		w.fake.execs[0].die(137)
		w.wantLog(t, before+" | exit e2 137 | exit e1 137 | exit c1 0")
	})
}

// P3 has a bound, because a process in uninterruptible sleep may never die.
func TestExit_OfInitIsToldWhenAnExecDoesNotDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		must(t, w.addExec(t, "e1").Start(ctx))
		begin := time.Now()
		w.fake.init.die(0)
		_, err := w.Init().Wait(ctx)
		must(t, err)
		if took := time.Since(begin); took != execExitTimeout {
			t.Errorf("init's exit told after %v, want %v", took, execExitTimeout)
		}
		w.fake.execs[0].die(137)
		w.wantLog(t, "create c1 | start c1 | exec-added e1 | exec-started e1 | exit c1 0 | exit e1 137")
	})
}

// P8: what hangs in the kernel does not keep State, Kill and Wait from answering.
func TestContainer_StateKillAndWaitAnswerWhileOthersHang(t *testing.T) {
	for _, call := range []string{"start", "pause", "update", "destroy"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				w := newWorld(t, f)
				if call != "start" {
					must(t, w.Init().Start(ctx))
				}
				if call == "destroy" {
					f.init.die(0)
					synctest.Wait()
				}
				f.gates[call] = make(chan struct{})
				done := make(chan error)
				go func() {
					switch call {
					case "start":
						done <- w.Init().Start(ctx)
					case "pause":
						done <- w.Pause(ctx)
					case "update":
						done <- w.Update(ctx, nil)
					case "destroy":
						_, err := w.Delete(ctx)
						done <- err
					}
				}()
				<-f.entered
				begin := time.Now()
				state := w.Init().Status().State
				if want := map[string]State{"start": Created, "pause": Pausing, "update": Running, "destroy": Stopped}[call]; state != want {
					t.Errorf("state = %v, want %v", state, want)
				}
				if call == "destroy" {
					wantClass(t, w.Init().Kill(syscall.SIGTERM), errdefs.ErrNotFound)
				} else {
					must(t, w.Init().Kill(syscall.SIGTERM))
				}
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if _, err := w.Init().Wait(short); call != "destroy" && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Wait = %v, want its deadline", err)
				}
				if took := time.Since(begin); took > time.Second {
					t.Errorf("answers took %v", took)
				}
				close(f.gates[call])
				must(t, <-done)
				f.init.die(0)
			})
		})
	}
}

func TestDelete_CanBeTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		f.init.die(0)
		synctest.Wait()
		f.failing["destroy"] = errors.New("busy")
		if _, err := w.Delete(ctx); !errors.Is(err, f.failing["destroy"]) {
			t.Errorf("Delete = %v, want %v", err, f.failing["destroy"])
		}
		delete(f.failing, "destroy")
		if w.removed != 0 {
			t.Error("the hooks were undone before the container was destroyed")
		}
		w.removeErr = errors.New("a busy mount")
		if _, err := w.Delete(ctx); !errors.Is(err, w.removeErr) {
			t.Errorf("Delete = %v, want %v", err, w.removeErr)
		}
		w.removeErr = nil
		_, err := w.Delete(ctx)
		must(t, err)
		if w.removed != 2 {
			t.Errorf("the hooks were undone %d times, want twice", w.removed)
		}
		_, err = w.Delete(ctx)
		wantClass(t, err, errdefs.ErrNotFound)
		w.wantLog(t, "create c1 | start c1 | exit c1 0 | delete c1")
	})
}

func TestDelete_KillsAnInitThatWasNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		status, err := w.Delete(ctx)
		must(t, err)
		if status.Exit.Status != 137 {
			t.Errorf("status = %d, want 137", status.Exit.Status)
		}
		w.wantLog(t, "create c1 | exit c1 137 | delete c1")
	})
}

func TestDelete_RefusesARunningContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		_, err := w.Delete(ctx)
		wantClass(t, err, errdefs.ErrFailedPrecondition)
		w.fake.init.die(0)
	})
}

// A freeze that is under way when SIGKILL comes would keep init from dying.
func TestPause_ThawsAfterAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["pause"] = make(chan struct{})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		paused := make(chan error)
		go func() { paused <- w.Pause(ctx) }()
		<-f.entered
		must(t, w.Init().Kill(syscall.SIGKILL))
		close(f.gates["pause"])
		must(t, <-paused)
		if f.frozen {
			t.Error("still frozen")
		}
	})
}

func TestExec_IsNotStartedWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		must(t, w.Init().Start(ctx))
		e := w.addExec(t, "e1")
		must(t, w.Pause(ctx))
		wantClass(t, e.Start(ctx), errdefs.ErrFailedPrecondition)
		if got := e.Status().State; got != Created {
			t.Errorf("exec is %v, want created: it was not tried", got)
		}
		must(t, w.Resume(ctx))
		must(t, e.Start(ctx))
		if got := e.Status().State; got != Running {
			t.Errorf("exec is %v, want running", got)
		}
		w.fake.execs[0].die(0)
		w.fake.init.die(0)
	})
}

// A caller that gives up does not keep its place in the queue.
func TestContainer_OperationGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		f.gates["update"] = make(chan struct{})
		updated := make(chan error)
		go func() { updated <- w.Update(ctx, nil) }()
		<-f.entered
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := w.Pause(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Pause = %v, want its deadline", err)
		}
		close(f.gates["update"])
		must(t, <-updated)
		f.init.die(0)
	})
}

func TestNew_TellsNothingWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		f := newFake()
		f.failing["create"] = errors.New("no root file system")
		if _, err := New(ctx, f, w.queue, Config{ID: "c2"}); !errors.Is(err, f.failing["create"]) {
			t.Errorf("New = %v, want %v", err, f.failing["create"])
		}
		w.fake.init.die(0)
		w.wantLog(t, "create c1 | exit c1 0")
	})
}

// The kernel may kill as soon as init runs its program, before Start knows that it does.
func TestContainer_TellsAnOOMAfterTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["start"] = make(chan struct{})
		w := newWorld(t, f)
		started := make(chan error, 1)
		go func() { started <- w.Init().Start(ctx) }()
		<-f.entered
		w.oomKilled()
		synctest.Wait()
		close(f.gates["start"])
		must(t, <-started)
		f.init.die(137)
		_, err := w.Init().Wait(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | start c1 | event.TaskOOM | exit c1 137")
	})
}

func TestContainer_TellsAnOOMBeforeAnExitWithoutAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newFake())
		w.oomKilled()
		w.fake.init.die(137)
		_, err := w.Init().Wait(ctx)
		must(t, err)
		w.wantLog(t, "create c1 | event.TaskOOM | exit c1 137")
	})
}
