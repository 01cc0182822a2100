// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/shim/pkg/event"
)

func TestQueue_FlushReturnsWhenAllIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r receiver
		gate := make(chan struct{})
		q := event.NewQueue(func(ctx context.Context, e event.Event, at time.Time) error {
			<-gate
			return r.publish(ctx, e, at)
		})
		if err := q.Flush(t.Context()); err != nil {
			t.Errorf("Flush of an empty queue: %v", err)
		}
		q.Put(event.TaskStart{ContainerID: "c1"})
		q.Put(event.TaskStart{ContainerID: "c2"})
		var seen string
		done := make(chan error)
		go func() {
			err := q.Flush(t.Context())
			seen = r.taken()
			done <- err
		}()
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Flush = %v before the second event was taken", err)
		default:
		}
		q.Put(event.TaskStart{ContainerID: "c3"}) // which Flush does not wait for
		gate <- struct{}{}
		if err := <-done; err != nil || seen != "start c1 | start c2" {
			t.Errorf("Flush = %v after %q, want nil after c1 and c2", err, seen)
		}
		close(gate)
		if err := q.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// A receiver that is back is not kept waiting until the next attempt.
func TestQueue_FlushTriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := receiver{answer: away}
		q := event.NewQueue(r.publish)
		q.Put(event.TaskStart{ContainerID: "c1"})
		time.Sleep(10 * time.Second) // the bubble's clock: attempts come each second by now
		r.takeAll()
		began := time.Now()
		if err := q.Flush(t.Context()); err != nil {
			t.Errorf("Flush: %v", err)
		}
		if d := time.Since(began); d > 0 {
			t.Errorf("Flush took %v, want an attempt at once", d)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestQueue_FlushEndsWithItsContextOrTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := receiver{answer: away}
		q := event.NewQueue(r.publish)
		q.Put(event.TaskStart{ContainerID: "c1"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 events") {
			t.Errorf("Flush = %v, want that the time is over and one event is left", err)
		}
		done := make(chan error)
		go func() { done <- q.Flush(t.Context()) }()
		synctest.Wait()
		closed, end := context.WithCancel(t.Context())
		end()
		if err := q.Close(closed); err == nil {
			t.Error("Close = nil, want that an event is left")
		}
		if err := <-done; err == nil {
			t.Error("Flush of a queue that left its event = nil")
		}
	})
}
