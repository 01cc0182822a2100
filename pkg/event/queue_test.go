// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/event"
)

var errAway = errors.New("connection refused")

// receiver records the events that it takes as text. answer, when set, is asked before an event is taken.
type receiver struct {
	mu     sync.Mutex
	log    []string
	tries  int
	answer func(ctx context.Context, e event.Event, at time.Time) error
}

func (r *receiver) publish(ctx context.Context, e event.Event, at time.Time) error {
	r.mu.Lock()
	r.tries++
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		if err := answer(ctx, e, at); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, text(e))
	return nil
}

// takeAll makes the receiver take everything from now on.
func (r *receiver) takeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = nil
}

func (r *receiver) taken() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, " | ")
}

func (r *receiver) wantTaken(t *testing.T, want string) {
	t.Helper()
	if got := r.taken(); got != want {
		t.Errorf("published %q, want %q", got, want)
	}
}

func text(e event.Event) string {
	switch e := e.(type) {
	case event.TaskStart:
		return "start " + e.ContainerID
	case event.TaskExit:
		return "exit " + e.ID
	case event.TaskOOM:
		return "oom " + e.ContainerID
	}
	return fmt.Sprintf("%T", e)
}

func away(context.Context, event.Event, time.Time) error { return errAway }

// silent never answers.
func silent(ctx context.Context, _ event.Event, _ time.Time) error {
	<-ctx.Done()
	return ctx.Err()
}

func start(id string) event.Event { return event.TaskStart{ContainerID: id} }

func exit(containerID, id string) event.Event {
	return event.TaskExit{ContainerID: containerID, ID: id}
}

func kill(id string) event.Event { return event.TaskOOM{ContainerID: id} }

// bubble is a test in a bubble of time, and its queue.
type bubble struct {
	*testing.T
	*event.Queue
}

func inBubble(t *testing.T, r *receiver, test func(bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(bubble{t, event.NewQueue(r.publish)}) })
}

func (b bubble) closeAll() {
	b.Helper()
	if err := b.Close(b.Context()); err != nil {
		b.Errorf("Close: %v", err)
	}
}

func TestQueue_PublishesInOrderWithTheTimeOfPut(t *testing.T) {
	var got []time.Time
	gate := make(chan struct{})
	// A slow receiver: Put must not wait for it, and the stamp must not be the time of sending.
	r := &receiver{answer: func(_ context.Context, _ event.Event, at time.Time) error {
		<-gate
		got = append(got, at)
		return nil
	}}
	inBubble(t, r, func(b bubble) {
		gate = make(chan struct{}) // of the bubble
		begin := time.Now()
		b.Put(start("c1"))
		time.Sleep(time.Second)
		b.Put(kill("c1"))
		b.Put(exit("c1", "c1"))
		close(gate)
		b.closeAll()
		r.wantTaken(b.T, "start c1 | oom c1 | exit c1")
		if diff := cmp.Diff([]time.Time{begin, begin.Add(time.Second), begin.Add(time.Second)}, got); diff != "" {
			b.Errorf("times of the events (-want +got):\n%s", diff)
		}
	})
}

func TestQueue_KeepsEventsWhileTheReceiverIsAway(t *testing.T) {
	r := &receiver{answer: away}
	inBubble(t, r, func(b bubble) {
		if got := b.Backlog(); got != (event.Backlog{}) {
			b.Errorf("backlog of an empty queue = %+v", got)
		}
		put := time.Now()
		b.Put(start("c1"))
		b.Put(exit("c1", "c1"))
		time.Sleep(time.Hour)
		b.Put(start("c2"))
		synctest.Wait()
		r.wantTaken(b.T, "")
		// 50+100+200+400+800 ms, then one try each second.
		if r.tries < 3600 || r.tries > 3610 {
			b.Errorf("%d tries within an hour, want about one each second", r.tries)
		}
		want := event.Backlog{Waiting: 3, Oldest: start("c1"), Since: put, Problem: errAway}
		if got := b.Backlog(); got != want {
			b.Errorf("backlog = %+v, want %+v", got, want)
		}
		r.takeAll()
		time.Sleep(time.Second)
		synctest.Wait()
		r.wantTaken(b.T, "start c1 | exit c1 | start c2")
		b.closeAll()
		if got := b.Backlog(); got != (event.Backlog{Sent: 3}) {
			b.Errorf("backlog after all were taken = %+v", got)
		}
	})
}

func TestQueue_BackOffDoublesAndRestartsForTheNextEvent(t *testing.T) {
	var at []time.Time
	r := &receiver{answer: func(context.Context, event.Event, time.Time) error {
		if at = append(at, time.Now()); len(at) == 4 || len(at) == 6 {
			return nil
		}
		return errAway
	}}
	inBubble(t, r, func(b bubble) {
		var want []time.Time
		for _, ms := range []time.Duration{0, 50, 150, 350, 350, 400} {
			want = append(want, time.Now().Add(ms*time.Millisecond))
		}
		b.Put(start("c1"))
		b.Put(start("c2"))
		b.closeAll()
		if diff := cmp.Diff(want, at); diff != "" {
			b.Errorf("times of the tries (-want +got):\n%s", diff)
		}
	})
}

// Close is nil: a rejected event is not one that waits.
func TestQueue_GoesOnAfterARejectedEvent(t *testing.T) {
	r := &receiver{answer: func(_ context.Context, e event.Event, _ time.Time) error {
		if _, ok := e.(event.TaskOOM); ok {
			return fmt.Errorf("no such topic: %w", event.ErrRejected)
		}
		return nil
	}}
	inBubble(t, r, func(b bubble) {
		b.Put(start("c1"))
		b.Put(kill("c1"))
		b.Put(exit("c1", "c1"))
		b.closeAll()
		r.wantTaken(b.T, "start c1 | exit c1")
		if r.tries != 3 {
			b.Errorf("%d tries for three events, want 3: a rejected event is not tried again", r.tries)
		}
	})
}

// Put says what OOM kills become of: an event, or a part of one that waits.
func TestQueue_CoalescesWaitingOOMKills(t *testing.T) {
	many := slices.Repeat([]event.Event{kill("c1")}, 1000)
	for _, tt := range []struct {
		name string
		put  []event.Event
		want string
	}{
		{"kills in a row", many, "oom c1"},
		{"of each container one", slices.Repeat([]event.Event{kill("c1"), kill("c2")}, 100), "oom c1 | oom c2"},
		{"each exit has its own before it (P5)", []event.Event{kill("c1"), kill("c1"), exit("c1", "e1"), kill("c1"), kill("c1"), exit("c1", "c1")}, "oom c1 | exit e1 | oom c1 | exit c1"},
		{"an exit of another container does not matter", []event.Event{kill("c1"), exit("c2", "c2"), kill("c1"), exit("c1", "c1")}, "oom c1 | exit c2 | exit c1"},
		{"a container of the same id that comes later has its own", []event.Event{
			kill("c1"), exit("c1", "c1"), event.TaskDelete{ContainerID: "c1", ID: "c1"}, start("c1"), kill("c1"), exit("c1", "c1"),
		}, "oom c1 | exit c1 | event.TaskDelete | start c1 | oom c1 | exit c1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &receiver{answer: away}
			inBubble(t, r, func(b bubble) {
				b.Put(start("first")) // it is on its way all the time
				synctest.Wait()
				for _, e := range tt.put {
					b.Put(e)
				}
				r.takeAll()
				b.closeAll()
				r.wantTaken(b.T, "start first | "+tt.want)
			})
		})
	}
}

// The receiver may have taken the one that is on its way already, before this kill.
func TestQueue_KeepsAnOOMKillWhileAnotherIsOnItsWay(t *testing.T) {
	r := &receiver{answer: away}
	inBubble(t, r, func(b bubble) {
		for range 1000 {
			b.Put(kill("c1"))
			synctest.Wait() // the first is being tried
		}
		r.takeAll()
		time.Sleep(time.Second)
		synctest.Wait()
		r.wantTaken(b.T, "oom c1 | oom c1")
		b.Put(kill("c1")) // those were told
		b.closeAll()
		r.wantTaken(b.T, "oom c1 | oom c1 | oom c1")
	})
}

func TestQueue_CloseWithReceiverAway(t *testing.T) {
	inBubble(t, &receiver{answer: away}, func(b bubble) {
		b.Put(start("c1"))
		b.Put(exit("c1", "c1"))
		ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		err := b.Close(ctx)
		if got := time.Since(begin); got != 3*time.Second {
			b.Errorf("Close took %v, want the 3s of its context: the wait between tries is interruptible", got)
		}
		if !errors.Is(err, errAway) || !strings.Contains(err.Error(), "2 events not sent") {
			b.Errorf("Close: %v, want 2 events not sent because of %v", err, errAway)
		}
		b.Put(start("late"))
		if again := b.Close(b.Context()); again == nil || again.Error() != err.Error() {
			b.Errorf("second Close: %v, want %v", again, err)
		}
	})
}

func TestQueue_CloseInterruptsAReceiverThatNeverAnswers(t *testing.T) {
	inBubble(t, &receiver{answer: silent}, func(b bubble) {
		b.Put(start("c1"))
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := b.Close(ctx); !errors.Is(err, context.Canceled) {
			b.Errorf("Close: %v, want the unsent event and %v", err, context.Canceled)
		}
	})
}

func TestQueue_RetriesWhenThereIsNoAnswer(t *testing.T) {
	r := &receiver{answer: silent}
	inBubble(t, r, func(b bubble) {
		b.Put(start("c1"))
		synctest.Wait()
		r.takeAll()
		b.closeAll()
		if r.tries != 2 {
			b.Errorf("%d tries, want 2", r.tries)
		}
	})
}

// synctest fails the test if the publisher is left.
func TestQueue_CloseEmptyAndTwiceAtOnce(t *testing.T) {
	r := &receiver{}
	inBubble(t, r, func(b bubble) {
		synctest.Wait() // the publisher waits for an event
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { b.closeAll() })
		}
		wg.Wait()
		b.Put(start("late"))
		synctest.Wait()
		r.wantTaken(b.T, "")
	})
}

func TestQueue_KeepsTheOrderOfEachOfManyCallers(t *testing.T) {
	const callers, each = 8, 200
	next := make([]int, callers)
	var last time.Time
	tries := 0
	r := &receiver{answer: func(_ context.Context, e event.Event, at time.Time) error {
		if tries++; tries%7 == 0 {
			return errAway
		}
		x := e.(event.TaskExit)
		if next[x.Pid] != x.Status || at.Before(last) {
			t.Errorf("caller %d: event %d of %v, want %d after %v", x.Pid, x.Status, at, next[x.Pid], last)
		}
		next[x.Pid], last = x.Status+1, at
		return nil
	}}
	inBubble(t, r, func(b bubble) {
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range each {
					b.Put(event.TaskExit{Pid: c, Status: i})
				}
			})
		}
		wg.Wait()
		b.closeAll()
		for c, n := range next {
			if n != each {
				b.Errorf("caller %d: %d events, want %d", c, n, each)
			}
		}
	})
}

func TestQueue_FlushReturnsWhenAllIsTaken(t *testing.T) {
	var gate chan struct{}
	r := &receiver{answer: func(context.Context, event.Event, time.Time) error { <-gate; return nil }}
	inBubble(t, r, func(b bubble) {
		gate = make(chan struct{})
		if err := b.Flush(b.Context()); err != nil {
			b.Errorf("Flush of an empty queue: %v", err)
		}
		b.Put(start("c1"))
		b.Put(start("c2"))
		flushed := make(chan string, 1)
		go func() {
			if err := b.Flush(b.Context()); err != nil {
				b.Errorf("Flush: %v", err)
			}
			flushed <- r.taken()
		}()
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		if len(flushed) > 0 {
			b.Error("Flush returned before the second event was taken")
		}
		b.Put(start("c3")) // Flush does not wait for it
		gate <- struct{}{}
		if got, want := <-flushed, "start c1 | start c2"; got != want {
			b.Errorf("Flush returned after %q, want %q", got, want)
		}
		close(gate)
		b.closeAll()
	})
}

// A receiver that is back is not kept waiting until the next attempt.
func TestQueue_FlushTriesAtOnce(t *testing.T) {
	r := &receiver{answer: away}
	inBubble(t, r, func(b bubble) {
		b.Put(start("c1"))
		time.Sleep(10 * time.Second) // attempts come each second by now
		r.takeAll()
		began := time.Now()
		if err := b.Flush(b.Context()); err != nil {
			b.Errorf("Flush: %v", err)
		}
		if d := time.Since(began); d > 0 {
			b.Errorf("Flush took %v, want an attempt at once", d)
		}
		b.closeAll()
	})
}

func TestQueue_FlushEndsWithItsContextOrTheQueue(t *testing.T) {
	inBubble(t, &receiver{answer: away}, func(b bubble) {
		b.Put(start("c1"))
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		if err := b.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 events") {
			b.Errorf("Flush = %v, want that the time is over and one event is left", err)
		}
		done := make(chan error)
		go func() { done <- b.Flush(b.Context()) }()
		synctest.Wait()
		closed, end := context.WithCancel(b.Context())
		end()
		if err := b.Close(closed); err == nil {
			b.Error("Close = nil, want that an event is left")
		}
		if err := <-done; err == nil {
			b.Error("Flush of a queue that left its event = nil")
		}
	})
}
