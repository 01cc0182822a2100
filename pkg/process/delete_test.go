// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// containerd closes the connection when a Delete was answered, by which the answer to another is lost.
func TestDelete_AnotherIsNotAnsweredBeforeTheEventsAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		f.init.die(0)
		synctest.Wait()
		reached, gate := make(chan struct{}), make(chan struct{})
		w.journal.answerDelete(func() error { close(reached); <-gate; return nil })
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := w.Delete(ctx); first <- err }()
		<-reached
		go func() { _, err := w.Delete(ctx); second <- err }()
		synctest.Wait()
		if len(first) > 0 || len(second) > 0 {
			t.Errorf("answered before the delete was delivered: first %t, second %t", len(first) > 0, len(second) > 0)
		}
		close(gate)
		must(t, <-first)
		wantClass(t, <-second, errdefs.ErrNotFound)
		w.wantLog(t, "create c1 | start c1 | exit c1 0 | delete c1")
	})
}

func TestDelete_WaitsHalfASecondForContainerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		f.init.die(0)
		synctest.Wait()
		w.journal.answerDelete(func() error { return errors.New("connection refused") })
		began := time.Now()
		_, err := w.Delete(ctx)
		must(t, err)
		if took := time.Since(began); took != 500*time.Millisecond {
			t.Errorf("Delete took %v while containerd was away, want 500 ms", took)
		}
		w.journal.answerDelete(nil)
		must(t, w.queue.Flush(ctx))
		w.wantLog(t, "create c1 | start c1 | exit c1 0 | delete c1")
	})
}

// Nobody else would answer them.
func TestDelete_AnswersWaitsForWhatNeverRan(t *testing.T) {
	for name, remove := range map[string]func(w *world, p *Process) error{
		"the exec": func(w *world, p *Process) error { _, err := w.DeleteExec(ctx, p); return err },
		"its container": func(w *world, _ *Process) error {
			w.fake.init.die(0)
			_, err := w.Init().Wait(ctx)
			if err == nil {
				_, err = w.Delete(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, newFake())
				must(t, w.Init().Start(ctx))
				defer w.fake.init.die(0) // at the latest
				p := w.addExec(t, "e1")
				waited := make(chan Exit, 1)
				go func() {
					exit, _ := p.Wait(t.Context())
					waited <- exit
				}()
				must(t, remove(w, p))
				synctest.Wait()
				select {
				case exit := <-waited:
					if exit.Status != unknownStatus {
						t.Errorf("Wait = %+v, want status %d, that of what never ran", exit, unknownStatus)
					}
				default:
					t.Error("Wait waits for ever")
				}
			})
		})
	}
}

// Its start may hang for as long as a file system does.
func TestDelete_DoesNotWaitForAnExecWhoseStartHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gates["exec"] = make(chan struct{})
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		p := w.addExec(t, "e1")
		started := make(chan error, 1)
		go func() { started <- p.Start(ctx) }()
		synctest.Wait()
		f.init.die(0)
		_, err := w.Init().Wait(ctx) // for execTimeout
		must(t, err)
		began := time.Now()
		_, err = w.Delete(ctx)
		must(t, err)
		if took := time.Since(began); took > 0 {
			t.Errorf("Delete took %v", took)
		}
		f.failing["exec"] = errors.New("its container is gone")
		close(f.gates["exec"])
		if err := <-started; err == nil {
			t.Error("Start of the exec succeeded")
		}
	})
}

// Start of an exec can come so late that it is refused, and then keeps Delete from deleting the exec.
func TestDelete_AnswersWaitsForAnExecWhoseStartIsRefusedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorld(t, f)
		must(t, w.Init().Start(ctx))
		p := w.addExec(t, "e1")
		waited := make(chan error, 1)
		go func() {
			_, err := p.Wait(t.Context())
			waited <- err
		}()
		p.opLock <- struct{}{} // as Start does at first
		f.init.die(0)
		_, err := w.Init().Wait(ctx)
		must(t, err)
		_, err = w.Delete(ctx)
		must(t, err)
		p.unlockOp()
		if err := p.Start(ctx); err == nil {
			t.Error("Start of the exec succeeded")
		}
		synctest.Wait()
		if len(waited) == 0 {
			t.Error("Wait for the exec does not return")
		}
	})
}
