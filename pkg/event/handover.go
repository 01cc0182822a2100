// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
)

// State is what a Queue hands over to that of a successor.
type State struct {
	Sent    int // Backlog.Sent
	Waiting []waiting
}

type waiting struct {
	Type  string // TaskExit
	Event json.RawMessage
	At    time.Time
}

// Freeze waits for the end of the attempt under way, after which none begins until Thaw. When ctx ends first it changes
// nothing, and the error is errdefs.ErrUnavailable.
func (q *Queue) Freeze(ctx context.Context) error {
	defer context.AfterFunc(ctx, q.wake)()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frozen = true
	q.hurry()
	for q.sending {
		if ctx.Err() != nil {
			q.frozen = false
			return fmt.Errorf("containerd does not answer an event: %w", errdefs.ErrUnavailable)
		}
		q.changed.Wait()
	}
	return nil
}

// Thaw undoes Freeze.
func (q *Queue) Thaw() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frozen = false
	q.changed.Broadcast()
}

// Save returns the events that wait in a frozen queue.
func (q *Queue) Save() (s State, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s.Sent = q.taken
	for _, one := range q.list {
		text, err := json.Marshal(one.event)
		if err != nil {
			return s, err
		}
		s.Waiting = append(s.Waiting, waiting{reflect.TypeOf(one.event).Name(), text, one.at})
	}
	return s, nil
}

// Restore puts the events of s into a new queue; commit lets it send them. Nothing may be put before commit.
func (q *Queue) Restore(s State) (commit func(), err error) {
	var list []stamped
	for _, one := range s.Waiting {
		e, err := decode(one)
		if err != nil {
			return nil, fmt.Errorf("event %q: %w: %w", one.Type, err, errdefs.ErrInvalidArgument)
		}
		list = append(list, stamped{e, one.At})
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.list, q.taken = list, s.Sent
		q.changed.Broadcast()
	}, nil
}

// all has an event of each type.
var all = []Event{
	TaskCreate{},
	TaskStart{},
	TaskOOM{},
	TaskExit{},
	TaskDelete{},
	TaskExecAdded{},
	TaskExecStarted{},
	TaskPaused{},
	TaskResumed{},
	TaskCheckpointed{},
}

func decode(w waiting) (Event, error) {
	for _, e := range all {
		if t := reflect.TypeOf(e); t.Name() == w.Type {
			made := reflect.New(t)
			err := json.Unmarshal(w.Event, made.Interface())
			return made.Elem().Interface(), err
		}
	}
	return nil, errors.New("unknown to this version")
}
