// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/inspect"
)

// told is what people learn of a group.
type told struct {
	Asleep bool
	Since  time.Time // of the last change
	Reason string    // of the last that woke them
	Slept  uint64
	Woken  map[string]uint64
	Freed  uint64 // bytes, the last time
}

// +checklocks:g.mu
func (g *group) changedLocked() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// await implements Await of [process.Sleeper] for a container.
func (g *group) await(ctx context.Context, h *hook, changes uint64) (*inspect.Idle, error) {
	for {
		g.mu.Lock()
		_, exists := g.members[h]
		i := g.inspectLocked()
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		switch {
		case !exists:
			return nil, fmt.Errorf("await sleep: the container is gone: %w", errdefs.ErrNotFound)
		case i.Changes > changes:
			return i, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *group) inspect() *inspect.Idle {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inspectLocked()
}

// +checklocks:g.mu
func (g *group) inspectLocked() *inspect.Idle {
	i := inspect.Idle{
		After: g.config.after.String(), Asleep: g.told.Asleep, Since: g.told.Since, Reason: g.told.Reason,
		Changes: g.told.Slept, Slept: g.told.Slept, Freed: g.told.Freed, Woken: maps.Clone(g.told.Woken),
	}
	for _, n := range i.Woken {
		i.Changes += n
	}
	return &i
}

// asleepSince is the zero time while they are awake, and while that changes.
//
// +checklocksignore: TryLock is not known.
func (g *group) asleepSince() (since time.Time) {
	if g.mu.TryLock() {
		defer g.mu.Unlock()
		if g.asleep {
			since = g.told.Since
		}
	}
	return since
}
