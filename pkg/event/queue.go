// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package event

import (
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
	tryTimeout = 5 * time.Second
)

// ErrRejected marks a publish error for which a retry is no use: the receiver refused the event.
var ErrRejected = errors.New("event rejected")

// Publisher sends one event, which happened at the given time, and returns once the receiver has it. It must return
// soon after ctx ends. After an error other than ErrRejected, the queue retries the same event.
type Publisher func(ctx context.Context, e Event, at time.Time) error

// Queue publishes events in the order in which they were put. Its methods are safe for concurrent use.
type Queue struct {
	publish Publisher
	ctx     context.Context //nolint:containedctx // the life of the publishing goroutine, which is the queue's
	cancel  context.CancelFunc
	stopped chan struct{} // closed when the publisher has ended; list and lastErr are then final

	mu sync.Mutex
	// +checklocks:mu
	changed sync.Cond // list or closed has changed
	list    []stamped
	// +checklocks:mu
	closed bool

	lastErr error // why the head is still there; written by the publisher alone
}

type stamped struct {
	event Event
	at    time.Time
}

// NewQueue returns an empty queue and starts its publisher, which Close ends.
func NewQueue(p Publisher) *Queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{publish: p, ctx: ctx, cancel: cancel, stopped: make(chan struct{})}
	q.changed.L = &q.mu
	go q.run() // ends when the queue is closed and empty or its context ends; Close joins it through q.stopped
	return q
}

// Put appends e with the time of the call. It never blocks. After Close it drops and logs the event. It drops an OOM
// kill if the last event of its container that waits is one too.
func (q *Queue) Put(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		log.L.WithField("event", fmt.Sprintf("%T%+v", e, e)).Warn("event after the queue was closed: dropped")
	case !q.coalescesLocked(e):
		// The stamp is taken under the lock, so that the times of the events never run against their order.
		q.list = append(q.list, stamped{e, time.Now()})
		q.changed.Signal()
	}
}

// coalescesLocked reports whether e is an OOM kill, and the last event of its container that waits is one too.
func (q *Queue) coalescesLocked(e Event) bool {
	kill, ok := e.(TaskOOM)
	if !ok {
		return false
	}
	for i := len(q.list) - 1; i > 0; i-- { // the head may be on its way, and have arrived before this kill
		if q.list[i].event.container() == kill.container() {
			return q.list[i].event == e
		}
	}
	return false
}

// Close refuses further events, publishes those that are left until ctx ends, and ends the publisher. The error says
// how many events were not sent and why. Close may be called again, also concurrently, and returns the same.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	q.changed.Signal()
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

// run is the publisher.
func (q *Queue) run() {
	defer close(q.stopped)
	defer q.cancel()
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
		if !q.send(head) {
			return
		}
		q.drop()
	}
}

// send retries head until the receiver takes or rejects it. It returns false when the queue's context ends first.
func (q *Queue) send(head stamped) bool {
	wait := firstRetry
	for tries := 1; ; tries++ {
		if q.ctx.Err() != nil {
			if q.lastErr == nil {
				q.lastErr = q.ctx.Err()
			}
			return false
		}
		ctx, cancel := context.WithTimeout(q.ctx, tryTimeout)
		err := q.publish(ctx, head.event, head.at)
		cancel()
		switch {
		case err == nil:
			if tries > 1 {
				log.L.WithField("tries", tries).Info("event receiver is back")
			}
			q.lastErr = nil
			return true
		case errors.Is(err, ErrRejected):
			log.L.WithError(err).WithField("event", fmt.Sprintf("%T%+v", head.event, head.event)).Error("event dropped")
			q.lastErr = nil
			return true
		}
		if tries == 1 { // once for each absence, which can last hours
			log.L.WithError(err).WithField("event", fmt.Sprintf("%T", head.event)).
				Warn("event receiver is away: kept, trying again")
		}
		q.lastErr = err
		select {
		case <-time.After(wait):
		case <-q.ctx.Done():
		}
		wait = min(2*wait, lastRetry)
	}
}

// drop removes the first event.
func (q *Queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list[0] = stamped{} // release the event, since the array behind the slice stays
	q.list = q.list[1:]
	if len(q.list) == 0 {
		q.list = nil
	}
}
