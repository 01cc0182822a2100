// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/process/processtest"
)

func TestDelete_CanBeTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.dies(0)
		busy := errors.New("busy")
		w.runtime.Fail("destroy", busy)
		wantClass(t, w.delete(w.Init()), busy)
		w.runtime.Fail("destroy", nil)
		if w.removed != 0 {
			t.Error("the hooks were undone before the container was destroyed")
		}
		w.removeErr = errors.New("a busy mount")
		wantClass(t, w.delete(w.Init()), w.removeErr)
		w.removeErr = nil
		must(t, w.delete(w.Init()))
		if w.removed != 2 {
			t.Errorf("the hooks were undone %d times, want twice", w.removed)
		}
		wantClass(t, w.delete(w.Init()), errdefs.ErrNotFound)
		w.wantLog("… | exit c1 0 | delete c1")
	})
}

// containerd closes the connection when a Delete was answered, by which the answer to another is lost.
func TestDelete_AnotherIsNotAnsweredBeforeTheEventsAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.dies(0)
		reached, gate := make(chan struct{}), make(chan struct{})
		w.answerDelete(func() error { close(reached); <-gate; return nil })
		first := async(func() error { return w.delete(w.Init()) })
		<-reached
		second := async(func() error { return w.delete(w.Init()) })
		synctest.Wait()
		if len(first) > 0 || len(second) > 0 {
			t.Errorf("answered before the delete was delivered: first %t, second %t", len(first) > 0, len(second) > 0)
		}
		close(gate)
		must(t, <-first)
		wantClass(t, <-second, errdefs.ErrNotFound)
		w.wantLog("… | exit c1 0 | delete c1")
	})
}

func TestDelete_WaitsHalfASecondForContainerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := running(t, &processtest.Runtime{})
		w.dies(0)
		w.answerDelete(func() error { return errors.New("connection refused") })
		began := time.Now()
		must(t, w.delete(w.Init()))
		if took := time.Since(began); took != 500*time.Millisecond {
			t.Errorf("Delete took %v while containerd was away, want 500 ms", took)
		}
		w.answerDelete(nil)
		must(t, w.queue.Flush(ctx))
		w.wantLog("… | exit c1 0 | delete c1")
	})
}

// Nobody else would answer them.
func TestDelete_AnswersWaitsForWhatNeverRan(t *testing.T) {
	for name, remove := range map[string]func(*world, *process.Process) error{
		"the exec": func(w *world, p *process.Process) error { return w.delete(p) },
		"its container": func(w *world, _ *process.Process) error {
			w.dies(0)
			return w.delete(w.Init())
		},
		"its container, as it starts": func(w *world, p *process.Process) error {
			p.LockOps() // as Start does at first
			w.dies(0)
			if err := w.delete(w.Init()); err != nil {
				return err
			}
			p.UnlockOps()
			wantClass(w.t, p.Start(ctx), errdefs.ErrNotFound)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := running(t, &processtest.Runtime{})
				p := w.addExec("e1")
				must(t, remove(w, p))
				synctest.Wait()
				select {
				case <-p.Exited():
					w.wantStatus(p, process.UnknownStatus)
				default:
					t.Error("Wait waits for ever")
				}
			})
		})
	}
}

// Its Start ends then, which may hang for as long as a file system does.
func TestDelete_DoesNotWaitForAnExecWhoseStartHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, started, _ := starting(t, &processtest.Runtime{}, "exec")
		w.dies(0) // after ExecExitTimeout
		began := time.Now()
		must(t, w.delete(w.Init()))
		if took := time.Since(began); took > 0 {
			t.Errorf("Delete took %v", took)
		}
		wantClass(t, <-started, process.ErrEndedByKill)
	})
}
