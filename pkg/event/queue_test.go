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

// receiver records what it takes as text. answer, when set, is asked before an event is taken.
type receiver struct {
	mu     sync.Mutex
	log    []string
	tries  int
	answer func(e event.Event) error
}

func (r *receiver) publish(_ context.Context, e event.Event, _ time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	if r.answer != nil {
		if err := r.answer(e); err != nil {
			return err
		}
	}
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

func away(event.Event) error { return errAway }

func TestQueue_PublishesInOrderWithTheTimeOfPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []time.Duration
		begin := time.Now()
		gate := make(chan struct{})
		var r receiver
		q := event.NewQueue(func(ctx context.Context, e event.Event, at time.Time) error {
			<-gate // a slow receiver: Put must not wait for it, and the stamp must not be the time of sending
			got = append(got, at.Sub(begin))
			return r.publish(ctx, e, at)
		})
		q.Put(event.TaskStart{ContainerID: "c1"})
		time.Sleep(time.Second) // the bubble's clock
		q.Put(event.TaskOOM{ContainerID: "c1"})
		q.Put(event.TaskExit{ContainerID: "c1", ID: "c1"})
		close(gate)
		if err := q.Close(t.Context()); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if got, want := r.taken(), "start c1 | oom c1 | exit c1"; got != want {
			t.Errorf("published %q, want %q", got, want)
		}
		if diff := cmp.Diff([]time.Duration{0, time.Second, time.Second}, got); diff != "" {
			t.Errorf("times of the events (-want +got):\n%s", diff)
		}
	})
}

func TestQueue_KeepsEventsWhileTheReceiverIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := receiver{answer: away}
		q := event.NewQueue(r.publish)
		q.Put(event.TaskStart{ContainerID: "c1"})
		q.Put(event.TaskExit{ContainerID: "c1", ID: "c1"})
		time.Sleep(time.Hour)
		q.Put(event.TaskStart{ContainerID: "c2"})
		synctest.Wait()
		if got := r.taken(); got != "" {
			t.Errorf("published %q while the receiver was away", got)
		}
		// 50+100+200+400+800 ms, then one try each second.
		if r.tries < 3600 || r.tries > 3610 {
			t.Errorf("%d tries within an hour, want about one each second", r.tries)
		}
		r.takeAll()
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := r.taken(), "start c1 | exit c1 | start c2"; got != want {
			t.Errorf("published %q a second after the receiver came back, want %q", got, want)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestQueue_BackOffDoublesAndRestartsForTheNextEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []time.Duration
		tries := 0
		q := event.NewQueue(func(context.Context, event.Event, time.Time) error {
			at = append(at, time.Since(begin))
			tries++
			if tries == 4 || tries == 6 {
				return nil
			}
			return errAway
		})
		q.Put(event.TaskStart{ContainerID: "c1"})
		q.Put(event.TaskStart{ContainerID: "c2"})
		if err := q.Close(t.Context()); err != nil {
			t.Fatalf("Close: %v", err)
		}
		ms := time.Millisecond
		if diff := cmp.Diff([]time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 350 * ms, 400 * ms}, at); diff != "" {
			t.Errorf("times of the tries (-want +got):\n%s", diff)
		}
	})
}

func TestQueue_GoesOnAfterARejectedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := receiver{answer: func(e event.Event) error {
			if _, ok := e.(event.TaskOOM); ok {
				return fmt.Errorf("no such topic: %w", event.ErrRejected)
			}
			return nil
		}}
		q := event.NewQueue(r.publish)
		q.Put(event.TaskStart{ContainerID: "c1"})
		q.Put(event.TaskOOM{ContainerID: "c1"})
		q.Put(event.TaskExit{ContainerID: "c1", ID: "c1"})
		if err := q.Close(t.Context()); err != nil {
			t.Errorf("Close: %v, want nil: a rejected event is not one that waits", err)
		}
		if got, want := r.taken(), "start c1 | exit c1"; got != want {
			t.Errorf("published %q, want %q", got, want)
		}
		if r.tries != 3 {
			t.Errorf("%d tries for three events, want 3: a rejected event is not tried again", r.tries)
		}
	})
}

// Put says what OOM kills become of: an event, or a part of one that waits.
func TestQueue_CoalescesWaitingOOMKills(t *testing.T) {
	kill := func(containerID string) event.Event { return event.TaskOOM{ContainerID: containerID} }
	exit := func(containerID, execID string) event.Event {
		return event.TaskExit{ContainerID: containerID, ID: execID}
	}
	many := slices.Repeat([]event.Event{kill("c1")}, 1000)
	for _, tt := range []struct {
		name string
		put  []event.Event
		want string
	}{
		{"kills in a row", many, "oom c1"},
		{"of each container one", slices.Repeat([]event.Event{kill("c1"), kill("c2")}, 100), "oom c1 | oom c2"},
		{
			"each exit has its own before it (P5)",
			[]event.Event{kill("c1"), kill("c1"), exit("c1", "e1"), kill("c1"), kill("c1"), exit("c1", "c1")},
			"oom c1 | exit e1 | oom c1 | exit c1",
		},
		{"an exit of another container does not matter", []event.Event{kill("c1"), exit("c2", "c2"), kill("c1"), exit("c1", "c1")}, "oom c1 | exit c2 | exit c1"},
		{"a container of the same id that comes later has its own", []event.Event{
			kill("c1"), exit("c1", "c1"), event.TaskDelete{ContainerID: "c1", ID: "c1"}, event.TaskStart{ContainerID: "c1"}, kill("c1"), exit("c1", "c1"),
		}, "oom c1 | exit c1 | event.TaskDelete | start c1 | oom c1 | exit c1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := receiver{answer: away}
				q := event.NewQueue(r.publish)
				q.Put(event.TaskStart{ContainerID: "first"}) // it is on its way all the time
				synctest.Wait()
				for _, e := range tt.put {
					q.Put(e)
				}
				r.takeAll()
				if err := q.Close(t.Context()); err != nil {
					t.Fatalf("Close: %v", err)
				}
				if got, want := r.taken(), "start first | "+tt.want; got != want {
					t.Errorf("published %q, want %q", got, want)
				}
			})
		})
	}
}

// The receiver may have taken the one that is on its way already, before this kill.
func TestQueue_KeepsAnOOMKillWhileAnotherIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := receiver{answer: away}
		q := event.NewQueue(r.publish)
		for range 1000 {
			q.Put(event.TaskOOM{ContainerID: "c1"})
			synctest.Wait() // the first is being tried
		}
		r.takeAll()
		time.Sleep(time.Second) // the bubble's clock
		synctest.Wait()
		if got, want := r.taken(), "oom c1 | oom c1"; got != want {
			t.Errorf("published %q, want %q", got, want)
		}
		q.Put(event.TaskOOM{ContainerID: "c1"}) // those were told
		if err := q.Close(t.Context()); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if got, want := r.taken(), "oom c1 | oom c1 | oom c1"; got != want {
			t.Errorf("published %q, want %q", got, want)
		}
	})
}

func TestQueue_CloseWithReceiverAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := receiver{answer: away}
		q := event.NewQueue(r.publish)
		q.Put(event.TaskStart{ContainerID: "c1"})
		q.Put(event.TaskExit{ContainerID: "c1", ID: "c1"})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		err := q.Close(ctx)
		if got := time.Since(begin); got != 3*time.Second {
			t.Errorf("Close took %v, want the 3s of its context: the wait between tries is interruptible", got)
		}
		if !errors.Is(err, errAway) || !strings.Contains(err.Error(), "2 events not sent") {
			t.Errorf("Close: %v, want 2 events not sent because of %v", err, errAway)
		}
		q.Put(event.TaskStart{ContainerID: "late"})
		if again := q.Close(t.Context()); again == nil || again.Error() != err.Error() {
			t.Errorf("second Close: %v, want %v", again, err)
		}
	})
}

func TestQueue_CloseInterruptsAReceiverThatNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := event.NewQueue(func(ctx context.Context, _ event.Event, _ time.Time) error {
			<-ctx.Done()
			return ctx.Err()
		})
		q.Put(event.TaskStart{ContainerID: "c1"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Close: %v, want the unsent event and %v", err, context.Canceled)
		}
	})
}

func TestQueue_RetriesWhenThereIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		q := event.NewQueue(func(ctx context.Context, _ event.Event, _ time.Time) error {
			if tries++; tries > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		q.Put(event.TaskStart{ContainerID: "c1"})
		if err := q.Close(t.Context()); err != nil || tries != 2 {
			t.Errorf("Close: %v after %d tries, want nil after 2", err, tries)
		}
	})
}

func TestQueue_CloseEmptyAndTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r receiver
		q := event.NewQueue(r.publish)
		synctest.Wait() // the publisher waits for an event
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := q.Close(t.Context()); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		wg.Wait()
		q.Put(event.TaskStart{ContainerID: "late"})
		synctest.Wait()
		if got := r.taken(); got != "" {
			t.Errorf("published %q after Close", got)
		}
	}) // synctest fails the test if the publisher were still there
}

func TestQueue_KeepsTheOrderOfEachOfManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, each = 8, 200
		next := make([]int, callers)
		var last time.Time
		fails := 0
		q := event.NewQueue(func(_ context.Context, e event.Event, at time.Time) error {
			if fails++; fails%7 == 0 {
				return errAway
			}
			x := e.(event.TaskExit)
			if next[x.Pid] != x.Status {
				t.Errorf("caller %d: event %d, want %d", x.Pid, x.Status, next[x.Pid])
			}
			next[x.Pid] = x.Status + 1
			if at.Before(last) {
				t.Errorf("event stamped %v after one stamped %v", at, last)
			}
			last = at
			return nil
		})
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				for i := range each {
					q.Put(event.TaskExit{Pid: c, Status: i})
				}
			})
		}
		wg.Wait()
		if err := q.Close(t.Context()); err != nil {
			t.Fatalf("Close: %v", err)
		}
		for c, n := range next {
			if n != each {
				t.Errorf("caller %d: %d events, want %d", c, n, each)
			}
		}
	})
}

func BenchmarkPut(b *testing.B) {
	q := event.NewQueue(func(context.Context, event.Event, time.Time) error { return nil })
	b.ReportAllocs()
	for b.Loop() {
		q.Put(event.TaskExit{ContainerID: "c1", ID: "c1"})
	}
	if err := q.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
