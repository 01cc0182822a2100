// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package event defines the events of a container that are sent to containerd, and the queue that publishes them in
// order.
//
// A Queue owns one goroutine, the publisher. NewQueue starts it; Close ends and joins it. One mutex guards the list. It
// is never held while an event is published, so Put cannot block on a receiver that is slow or away.
//
// Promises:
//   - Events are published in the order of their Put calls, one at a time: an event is not tried before the one ahead
//     of it was accepted or rejected. Promises P1 to P7 of the shim rest on this (docs/events.md).
//   - An event is dropped only when the receiver rejects it, when it is put after Close, or when Close runs out of
//     time. Each of these is logged or returned.
//   - An event may be published twice, when the receiver's answer was lost.
//   - Consecutive OOM kills of a container are one event while that one waits to be sent. Each exit still comes after
//     the kills before it.
//
// The queue has no bound, on purpose. Each exec and each container makes a fixed number of events, apart from its OOM
// kills, and the receiver starts execs and containers: while containerd is away nobody does, so the queue is limited by
// what is running. A bound would have to drop an exit or block the waiter that reports it.
//
// The package knows neither topics nor protobuf; the service package turns an Event into containerd's message.
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
	// firstRetry and lastRetry bound the wait between two attempts at the head. A containerd that restarts is back within
	// a second or so. A long absence costs one attempt each second.
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second

	// tryTimeout bounds one attempt: a receiver that accepts and never answers must not block the queue for ever.
	// containerd's own shims allow the same.
	tryTimeout = 5 * time.Second
)

// ErrRejected marks a publish error for which a retry is useless: the receiver refused the event.
var ErrRejected = errors.New("event rejected")

// Publisher sends one event, which happened at the given time, and returns when the receiver has it. It must return
// soon after ctx ends. After an error other than ErrRejected, the queue retries the same event.
type Publisher func(ctx context.Context, e Event, at time.Time) error

// Queue publishes events in the order in which they were put. Its methods are safe for concurrent use.
type Queue struct {
	publish Publisher
	ctx     context.Context //nolint:containedctx // the life of the publishing goroutine, which is the queue's
	cancel  context.CancelFunc
	stopped chan struct{} // closed when the publisher has ended; list and lastErr are then final

	flushed chan struct{} // has one element after a Flush that the publisher has not seen

	mu sync.Mutex
	// +checklocks:mu
	changed sync.Cond // list, closed or taken has changed
	list    []stamped
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	taken int // how many events have left the list
	// +checklocks:mu
	problem error // of the last attempt at the head

	lastErr error // for which the publisher has left events
}

type stamped struct {
	event Event
	at    time.Time
}

// NewQueue returns an empty queue and starts its publisher, which Close ends.
func NewQueue(p Publisher) *Queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{publish: p, ctx: ctx, cancel: cancel, stopped: make(chan struct{}), flushed: make(chan struct{}, 1)}
	q.changed.L = &q.mu
	go q.run() // ends when the queue is closed and empty or its context ends; Close joins it through q.stopped
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
	case !q.coalescesLocked(e):
		// The stamp is taken under the lock, so that the times of the events never run against their order.
		q.list = append(q.list, stamped{e, time.Now()})
		q.changed.Broadcast()
	}
}

// coalescesLocked reports whether e is an OOM kill, and the last event of its container that waits is one too.
func (q *Queue) coalescesLocked(e Event) bool {
	kill, ok := e.(TaskOOM)
	if !ok {
		return false
	}
	for i := len(q.list) - 1; i > 0; i-- { // not the head: it may have arrived before this kill
		if q.list[i].event.container() == kill.container() {
			return q.list[i].event == e
		}
	}
	return false
}

// Flush returns when the receiver has all events that were put before, or ctx ends. A receiver that was away is tried
// again immediately.
func (q *Queue) Flush(ctx context.Context) error {
	select {
	case q.flushed <- struct{}{}:
	default: // the publisher has not seen the last one
	}
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock() // otherwise ctx could end between the check and the wait
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for last := q.taken + len(q.list); q.taken < last; q.changed.Wait() {
		if ctx.Err() != nil {
			return fmt.Errorf("flush event queue: %d events not sent: %w", last-q.taken, context.Cause(ctx))
		}
		if q.ctx.Err() != nil { // the publisher has ended, and leaves them
			return fmt.Errorf("flush event queue: %d events not sent: %w", last-q.taken, q.ctx.Err())
		}
	}
	return nil
}

// Backlog counts the events of a Queue, and describes the oldest that is not delivered.
type Backlog struct {
	Sent, Waiting int
	Oldest        Event     // nil: none waits
	Since         time.Time // of the Put of Oldest
	Problem       error     // of its last attempt; nil before that
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

func (q *Queue) setProblem(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.problem = err
}

// Close refuses further events, publishes those that are left until ctx ends, and ends the publisher. The error says
// how many events were not sent and why. Close may be called again, even concurrently, and returns the same.
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
	if n := len(q.list); n > 0 {
		return fmt.Errorf("close event queue: %d events not sent: %w", n, q.lastErr)
	}
	return nil
}

func (q *Queue) run() {
	defer close(q.stopped)
	defer func() {
		q.cancel()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast() // no Flush waits for what is left
	}()
	for {
		q.mu.Lock()
		for len(q.list) == 0 && !q.closed {
			q.changed.Wait()
		}
		if len(q.list) == 0 {
			q.mu.Unlock()
			return
		}
		head := q.list[0]
		q.mu.Unlock()
		if q.lastErr = q.send(head); q.lastErr != nil {
			return
		}
		q.mu.Lock()
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

// send retries head until the receiver takes or rejects it. When the queue's context ends first, the error says why.
func (q *Queue) send(head stamped) error {
	var lastErr error
	wait := firstRetry
	for tries := 1; ; tries++ {
		if q.ctx.Err() != nil {
			return cmp.Or(lastErr, q.ctx.Err())
		}
		ctx, cancel := context.WithTimeout(q.ctx, tryTimeout)
		err := q.publish(ctx, head.event, head.at)
		cancel()
		switch {
		case err == nil:
			if tries > 1 {
				log.L.WithField("tries", tries).Info("event receiver is back")
			}
			return nil
		case errors.Is(err, ErrRejected):
			log.L.WithError(err).WithField("event", fmt.Sprintf("%T%+v", head.event, head.event)).Error("event dropped")
			return nil
		}
		if tries == 1 { // once for each absence, which can last hours
			log.L.WithError(err).WithField("event", fmt.Sprintf("%T", head.event)).
				Warn("event receiver is away: kept, trying again")
		}
		lastErr = err
		q.setProblem(err)
		select {
		case <-time.After(wait):
			wait = min(2*wait, lastRetry)
		case <-q.flushed:
			wait = firstRetry
		case <-q.ctx.Done():
		}
	}
}

// Event is one thing that happened to a container. It is one of the Task types of this package, by value: a type switch
// over them is complete. The fields are those of containerd's api/events/task.proto.
type Event interface{ container() string }

// Mount is one mount of the Create request.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// TaskCreate says that the init of a container exists and waits to be started.
type TaskCreate struct {
	ContainerID string
	Bundle      string
	Rootfs      []Mount
	Checkpoint  string // the image the container was restored from; empty for a fresh one
	Pid         int
	// The standard streams as the request named them. An empty string means no stream.
	Stdin, Stdout, Stderr string
	Terminal              bool
}

// TaskStart says that the init of a container runs.
type TaskStart struct {
	ContainerID string
	Pid         int
}

// TaskOOM says that the kernel killed a process of the container for lack of memory.
type TaskOOM struct{ ContainerID string }

// TaskExit says that a process ended. ID is the container's id for its init and the exec's id for an exec, which is how
// containerd tells them apart. Status is the exit code, or 128 plus the signal that ended the process.
type TaskExit struct {
	ContainerID string
	ID          string
	Pid         int
	Status      int
	At          time.Time
}

// TaskDelete says that nothing of a process is left. Its fields are as in TaskExit.
type TaskDelete TaskExit

// TaskExecAdded says that an exec is known and may be started.
type TaskExecAdded struct {
	ContainerID string
	ExecID      string
}

// TaskExecStarted says that the process of an exec runs.
type TaskExecStarted struct {
	ContainerID string
	ExecID      string
	Pid         int
}

// TaskPaused says that all processes of a container are frozen.
type TaskPaused struct{ ContainerID string }

// TaskResumed says that the processes of a paused container run again.
type TaskResumed struct{ ContainerID string }

// TaskCheckpointed says that the state of a container was written to Checkpoint, a path.
type TaskCheckpointed struct {
	ContainerID string
	Checkpoint  string
}

func (e TaskCreate) container() string       { return e.ContainerID }
func (e TaskStart) container() string        { return e.ContainerID }
func (e TaskOOM) container() string          { return e.ContainerID }
func (e TaskExit) container() string         { return e.ContainerID }
func (e TaskDelete) container() string       { return e.ContainerID }
func (e TaskExecAdded) container() string    { return e.ContainerID }
func (e TaskExecStarted) container() string  { return e.ContainerID }
func (e TaskPaused) container() string       { return e.ContainerID }
func (e TaskResumed) container() string      { return e.ContainerID }
func (e TaskCheckpointed) container() string { return e.ContainerID }
