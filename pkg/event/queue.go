// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package event defines the events of a container, and the queue that publishes them to containerd in order, one at a
// time. The promises P1 to P7 (docs/events.md) rest on the order. An event is dropped only when the receiver rejects
// it, when it is put after Close, or when Close runs out of time; each of these is logged or returned. An event whose
// answer was lost is published twice.
//
// The queue has no bound: a bound would drop an exit or block its waiter. An exec or a container has a fixed number of
// events except its OOM kills, which are merged, and nobody starts one while containerd is away.
//
// A Queue has one goroutine, which Close joins. Its lock is never held while an event is published.
package event

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/log"
)

const (
	// firstRetry and lastRetry bound the wait between two attempts at the oldest event.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	// tryTimeout bounds one attempt, as in containerd's own shims.
	tryTimeout = 5 * time.Second
)

// ErrRejected marks the error of a Publisher whose receiver has refused the event. The event is not tried again.
var ErrRejected = errors.New("event rejected")

// Publisher sends one event, which happened at the given time, and returns when the receiver has it. It returns soon
// after ctx ends. After an error other than ErrRejected, the queue tries the same event again.
type Publisher func(ctx context.Context, e Event, at time.Time) error

// Queue publishes events in the order in which they were put. Its methods are safe for concurrent use.
type Queue struct {
	publish Publisher
	ctx     context.Context //nolint:containedctx // ends with the publishing goroutine
	cancel  context.CancelFunc
	stopped chan struct{} // closed when the publishing goroutine has ended
	flushed chan struct{} // has an element after a Flush or a Freeze that the publisher has not seen

	mu sync.Mutex
	// +checklocks:mu
	changed sync.Cond // list, closed or taken has changed
	// +checklocks:mu
	list []stamped
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	taken int // number of events that have left the list
	// +checklocks:mu
	problem error // of the last attempt at the first event of the list
	// +checklocks:mu
	frozen bool // no attempt begins
	// +checklocks:mu
	sending bool // an attempt is under way
}

type stamped struct {
	event Event
	at    time.Time
}

// NewQueue returns an empty queue and starts its goroutine, which Close ends.
func NewQueue(p Publisher) *Queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{publish: p, ctx: ctx, cancel: cancel, stopped: make(chan struct{}), flushed: make(chan struct{}, 1)}
	q.changed.L = &q.mu
	go q.run()
	return q
}

// Put appends e with the time of the call. It never blocks. After Close it drops and logs the event. Consecutive OOM
// kills of one container are merged while the first waits.
func (q *Queue) Put(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		log.L.WithField("event", fmt.Sprintf("%T%+v", e, e)).Warn("event after the queue was closed: dropped")
	case !q.mergesLocked(e):
		q.list = append(q.list, stamped{e, time.Now()}) // under the lock: times are in the order of events
		q.changed.Broadcast()
	}
}

// mergesLocked reports whether e is an OOM kill, and one of its container waits that no exit of the container follows.
//
// +checklocks:q.mu
func (q *Queue) mergesLocked(e Event) bool {
	kill, ok := e.(TaskOOM)
	if !ok {
		return false
	}
	for i := len(q.list) - 1; i > 0; i-- { // without the first: it may have arrived before this kill
		switch waiting := q.list[i].event.(type) {
		case TaskOOM:
			if waiting == kill {
				return true
			}
		case TaskExit:
			if waiting.ContainerID == kill.ContainerID {
				return false
			}
		}
	}
	return false
}

// Flush returns when the receiver has all events that were put before, or ctx ends. A receiver that was away is tried
// again immediately.
func (q *Queue) Flush(ctx context.Context) error {
	q.hurry()
	defer context.AfterFunc(ctx, q.wake)()
	q.mu.Lock()
	defer q.mu.Unlock()
	for last := q.taken + len(q.list); q.taken < last; q.changed.Wait() {
		if err := cmp.Or(context.Cause(ctx), q.ctx.Err()); err != nil {
			return fmt.Errorf("flush event queue: %d events not sent: %w", last-q.taken, err)
		}
	}
	return nil
}

// hurry ends the wait before the next attempt.
func (q *Queue) hurry() {
	select {
	case q.flushed <- struct{}{}:
	default: // the publisher has not seen the last one
	}
}

func (q *Queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed.Broadcast()
}

// Backlog counts the events of a Queue, and describes the oldest that is not delivered.
type Backlog struct {
	Sent, Waiting int
	Oldest        Event     // nil if none waits
	Since         time.Time // when Oldest was put
	Problem       error     // of the last attempt at Oldest; nil before that
}

// Backlog returns the current backlog.
func (q *Queue) Backlog() Backlog {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := Backlog{Sent: q.taken, Waiting: len(q.list)}
	if len(q.list) > 0 {
		b.Oldest, b.Since, b.Problem = q.list[0].event, q.list[0].at, q.problem
	}
	return b
}

// Close refuses further events, publishes the rest until ctx ends, and ends the goroutine. The error says how many
// events were not sent and why. Close can be called again, even concurrently, and returns the same.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	q.changed.Broadcast()
	q.mu.Unlock()
	select {
	case <-q.stopped:
	case <-ctx.Done():
		q.cancel()
		<-q.stopped
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.list); n > 0 {
		return fmt.Errorf("close event queue: %d events not sent: %w", n, cmp.Or(q.problem, q.ctx.Err()))
	}
	return nil
}

func (q *Queue) run() {
	defer close(q.stopped)
	defer q.wake() // a Flush does not wait for the rest
	defer q.cancel()
	for {
		q.mu.Lock()
		for len(q.list) == 0 && !q.closed || q.frozen {
			q.changed.Wait()
		}
		if len(q.list) == 0 {
			q.mu.Unlock()
			return
		}
		first := q.list[0]
		q.sending = true
		q.mu.Unlock()
		sent := q.send(first)
		q.mu.Lock()
		q.sending = false
		q.changed.Broadcast()
		if !sent {
			q.mu.Unlock()
			if q.ctx.Err() != nil {
				return
			}
			continue
		}
		q.list[0] = stamped{} // release the event, since the array behind the slice stays
		if q.list = q.list[1:]; len(q.list) == 0 {
			q.list = nil
		}
		q.taken++
		q.problem = nil
		q.changed.Broadcast()
		q.mu.Unlock()
	}
}

// send tries an event until the receiver takes or rejects it. It reports false if the queue's context ends first, or
// the queue is frozen.
func (q *Queue) send(s stamped) bool {
	event := log.L.WithField("event", fmt.Sprintf("%T", s.event))
	for tries, wait := 1, firstRetry; q.ctx.Err() == nil; tries++ {
		ctx, cancel := context.WithTimeout(q.ctx, tryTimeout)
		err := q.publish(ctx, s.event, s.at)
		cancel()
		switch {
		case err == nil:
			return true
		case errors.Is(err, ErrRejected):
			event.WithError(err).Errorf("event dropped: %+v", s.event)
			return true
		case tries == 1: // once for each absence, which can last hours
			event.WithError(err).Warn("event receiver is away: kept, trying again")
		}
		q.mu.Lock()
		q.problem = err
		q.mu.Unlock()
		if q.isFrozen() {
			return false
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, lastRetry)
		case <-q.flushed:
			wait = firstRetry
			if q.isFrozen() {
				return false
			}
		case <-q.ctx.Done():
		}
	}
	return false
}

func (q *Queue) isFrozen() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.frozen
}

// Event is one of the Task types of this package, by value. The fields are those of containerd's api/events/task.proto.
type Event any

// Mount is one mount of the Create request.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// The events.
type (
	// TaskCreate says that the init of a container exists and waits to be started.
	TaskCreate struct {
		ContainerID           string
		Bundle                string
		Rootfs                []Mount
		Checkpoint            string // image that the container is restored from; empty for a fresh one
		Pid                   int
		Stdin, Stdout, Stderr string // as the request names them; empty for none
		Terminal              bool
	}
	// TaskStart says that the init of a container runs.
	TaskStart struct {
		ContainerID string
		Pid         int
	}
	// TaskOOM says that the kernel killed a process of the container for lack of memory.
	TaskOOM struct{ ContainerID string }
	// TaskExit says that a process ended. ID is the container's id for its init and the exec's id for an exec. Status is
	// the exit code, or 128 plus the signal that ended the process.
	TaskExit struct {
		ContainerID string
		ID          string
		Pid         int
		Status      int
		At          time.Time
	}
	// TaskDelete says that nothing of a process is left. Its fields are as in TaskExit.
	TaskDelete TaskExit
	// TaskExecAdded says that an exec is known and may be started.
	TaskExecAdded struct{ ContainerID, ExecID string }
	// TaskExecStarted says that the process of an exec runs.
	TaskExecStarted struct {
		ContainerID, ExecID string
		Pid                 int
	}
	// TaskPaused says that all processes of a container are frozen.
	TaskPaused struct{ ContainerID string }
	// TaskResumed says that the processes of a paused container run again.
	TaskResumed struct{ ContainerID string }
	// TaskCheckpointed says that the state of a container was written to Checkpoint, a path.
	TaskCheckpointed struct{ ContainerID, Checkpoint string }
)
