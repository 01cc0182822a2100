// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"math"

	"golang.org/x/sync/semaphore"
)

// gate admits many holders at a time, or one that excludes all others. Waiters are served in the order of arrival. A
// closed gate admits nobody; its holders stay until they leave.
type gate struct {
	slots  *semaphore.Weighted     // a holder has one, an excluder has all
	closed context.Context         //nolint:containedctx // that of a gate, not of a request; its cause is that of close
	close  context.CancelCauseFunc // may be called many times; the first cause counts
}

const allSlots = math.MaxInt64

func newGate() *gate {
	closed, cancel := context.WithCancelCause(context.Background())
	return &gate{slots: semaphore.NewWeighted(allSlots), closed: closed, close: cancel}
}

// enter waits for excluders, and makes the caller a holder until leave. exclude waits until all holders have left, and
// admits nobody until readmit. Both fail with the cause if ctx ends, or the gate is closed. empty waits until all
// holders of a closed gate have left.
func (g *gate) enter(ctx context.Context) error   { return g.take(ctx, 1) }
func (g *gate) leave()                            { g.slots.Release(1) }
func (g *gate) exclude(ctx context.Context) error { return g.take(ctx, allSlots) }
func (g *gate) readmit()                          { g.slots.Release(allSlots) }
func (g *gate) empty(ctx context.Context) error   { return g.slots.Acquire(ctx, allSlots) }

func (g *gate) take(ctx context.Context, slots int64) error {
	ctx, cancel := withEnd(ctx, g.closed)
	defer cancel()
	if g.slots.Acquire(ctx, slots) != nil {
		return context.Cause(ctx)
	}
	if g.closed.Err() != nil { // before Acquire, or since: empty does not wait for this caller, or no longer
		g.slots.Release(slots)
		return context.Cause(g.closed)
	}
	return nil
}

// withEnd returns ctx, which ends with other as well, for the cause of that.
func withEnd(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
