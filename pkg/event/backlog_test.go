// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/shim/pkg/event"
)

func TestQueue_BacklogSaysWhatWaitsAndWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(event.Event) error { return errAway }}
		q := event.NewQueue(r.publish)
		if got := q.Backlog(); got != (event.Backlog{}) {
			t.Errorf("of an empty queue: %+v", got)
		}
		put := time.Now()
		q.Put(event.TaskStart{ContainerID: "c1"})
		q.Put(event.TaskOOM{ContainerID: "c1"})
		time.Sleep(time.Second)
		got := q.Backlog()
		if got.Waiting != 2 || got.Sent != 0 || got.Oldest != (event.TaskStart{ContainerID: "c1"}) || !got.Since.Equal(put) {
			t.Errorf("backlog = %+v, want two events since %v", got, put)
		}
		if !errors.Is(got.Problem, errAway) {
			t.Errorf("problem = %v, want %v", got.Problem, errAway)
		}
		r.takeAll()
		if err := q.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if got := q.Backlog(); got != (event.Backlog{Sent: 2}) {
			t.Errorf("after both were taken: %+v", got)
		}
	})
}
