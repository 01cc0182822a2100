// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/event"
)

func TestQueue_HandsOverWhatWaits(t *testing.T) {
	r := &receiver{answer: away}
	var times []time.Time
	inBubble(t, r, func(b bubble) {
		begin := time.Now()
		b.Put(start("c1"))
		time.Sleep(time.Second)
		b.Put(exit("c1", "c1"))
		if err := b.Freeze(b.Context()); err != nil {
			b.Fatal(err)
		}
		state, err := b.Save()
		if err != nil {
			b.Fatal(err)
		}
		text, err := json.Marshal(state)
		if err != nil {
			b.Fatal(err)
		}
		var restored event.State
		if err := json.Unmarshal(text, &restored); err != nil {
			b.Fatal(err)
		}
		successor := event.NewQueue(func(ctx context.Context, e event.Event, at time.Time) error {
			times = append(times, at)
			return r.publish(ctx, e, at)
		})
		commit, err := successor.Restore(restored)
		if err != nil {
			b.Fatal(err)
		}
		r.takeAll()
		time.Sleep(time.Minute)
		synctest.Wait()
		r.wantTaken(b.T, "") // neither a frozen queue sends nor one that is not committed
		commit()
		successor.Put(start("c2"))
		if err := successor.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		r.wantTaken(b.T, "start c1 | exit c1 | start c2")
		want := []time.Time{begin, begin.Add(time.Second), begin.Add(time.Minute + time.Second)}
		if diff := cmp.Diff(want, times); diff != "" {
			b.Errorf("times of the events (-want +got):\n%s", diff)
		}
		b.Thaw()
		r.takeAll()
		b.closeAll()
	})
}
