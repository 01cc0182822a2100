// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
)

// Reconciler keeps the cpusets of containers those of their sources. Any goroutine may call it.
type Reconciler struct {
	root string
	open func() (Notifier, error)

	turn      chan struct{} // holds one element while somebody reads or writes cgroups, and guards the next four
	stopped   bool
	followers map[string]*follower // by the container's id
	loop      *loop                // nil while no container follows
	unwatched string               // why something is not watched, as last logged

	mu     sync.Mutex
	states map[string]State // by the container's id
}

// New returns a Reconciler for the cgroup v2 hierarchy at root, without symbolic links; open is Inotify but in tests. It
// does nothing before Add.
func New(root string, open func() (Notifier, error)) *Reconciler {
	return &Reconciler{
		root: root, open: open,
		turn: make(chan struct{}, 1), followers: make(map[string]*follower),
		states: make(map[string]State),
	}
}

// Add lets a container follow its source, and has written the cgroup when it returns. An error means that the container does
// not follow: errdefs.ErrNotFound if the source or the container's cgroup does not exist, ErrInvalidArgument if the source
// cannot be one, ErrAlreadyExists if the id follows, ErrFailedPrecondition after Stop or if there is nothing to assign.
func (r *Reconciler) Add(ctx context.Context, c Container) error {
	f, err := newFollower(r.root, c)
	if err != nil {
		return err
	}
	r.change(func() {
		switch {
		case r.stopped:
			err = fmt.Errorf("the reconciler is stopped: %w", errdefs.ErrFailedPrecondition)
			return
		case r.followers[c.ID] != nil:
			err = fmt.Errorf("follows %s: %w", r.followers[c.ID].state.Source, errdefs.ErrAlreadyExists)
			return
		}
		r.followers[c.ID] = f
		r.watch() // before the look, so that a change after it is told
		if err = f.reconcile(); err == nil {
			ctx, cancel := context.WithTimeout(ctx, applyTimeout)
			defer cancel()
			err = f.tell(ctx)
		}
		if err != nil {
			delete(r.followers, c.ID)
			return
		}
		r.show(f)
	})
	return err
}

// Remove lets a container follow no longer. When it returns, its cgroup is not written any more. An id that does not
// follow is none to remove.
func (r *Reconciler) Remove(id string) {
	r.change(func() {
		delete(r.followers, id)
		r.mu.Lock()
		delete(r.states, id)
		r.mu.Unlock()
	})
}

// Pin lets a container keep what it has, since it gets a cpuset of its own. When it returns, its cgroup is not written any
// more until Unpin. An id that does not follow has nothing to pin.
func (r *Reconciler) Pin(id string) { r.pin(id, true) }

// Unpin undoes Pin, for a cpuset of the container's own that was refused.
func (r *Reconciler) Unpin(id string) { r.pin(id, false) }

func (r *Reconciler) pin(id string, pinned bool) {
	r.change(func() {
		f := r.followers[id]
		if f == nil || f.state.Pinned == pinned {
			return
		}
		f.state.Pinned = pinned
		f.told = nil // what Apply took may be undone by now
		if !pinned {
			r.watch()
			r.reconcile(context.Background(), f)
		}
		r.show(f)
	})
}

// Stop lets all containers follow no longer, waits for the goroutine, and makes Add refuse.
func (r *Reconciler) Stop() {
	r.change(func() {
		r.stopped = true
		clear(r.followers)
	})
}

// State returns what is known of a container, and false if it does not follow. It does not wait for a look that is under
// way. After Stop it returns what was known last.
func (r *Reconciler) State(id string) (State, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.states[id]
	return s, ok
}

func (r *Reconciler) show(f *follower) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[f.ID] = f.state
}

// change has the turn while do runs, then ends the goroutine if no container follows any more.
func (r *Reconciler) change(do func()) {
	r.turn <- struct{}{}
	do()
	ended := r.loop
	if len(r.following()) > 0 {
		ended = nil
	} else {
		r.loop = nil
	}
	<-r.turn // the goroutine may be waiting for it
	if ended != nil {
		ended.end()
	}
}

// following returns the containers that follow and are not pinned, in the order of their ids.
func (r *Reconciler) following() []*follower {
	var fs []*follower
	for _, id := range slices.Sorted(maps.Keys(r.followers)) {
		if f := r.followers[id]; !f.state.Pinned {
			fs = append(fs, f)
		}
	}
	return fs
}
