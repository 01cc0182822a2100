// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cpuset keeps the CPUs, and if asked the memory nodes, of containers equal to those of a source cgroup, also
// when the source changes. It is for cgroup v2 only; docs/cpuset.md has the rules.
//
// inotify reports writes by processes, not new values of the kernel, such as after hot-plug of a CPU. So everything is
// read again every 1 to 3 seconds: some ten small files for each container.
//
// A Reconciler has one goroutine, from its first container to its last or to Stop; Remove and Stop join it. cgroupLock
// is held over all access to cgroups, so after Remove, Pin or Stop nothing is written.
package cpuset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// Reconciler keeps the cpusets of containers equal to those of their sources. Its methods are safe for concurrent use.
type Reconciler struct {
	root string
	open func() Notifier

	cgroupLock chan struct{} // holds one element while somebody reads or writes cgroups, and guards the next four
	stopped    bool
	followers  map[string]*follower // by the container's id
	loop       *loop                // nil while no container follows
	watchError string               // why something was not watched, as last logged

	states sync.Map // of a State by the container's id
}

// New returns a Reconciler for the cgroup v2 hierarchy at root (no symbolic links). open is Inotify except in tests.
func New(root string, open func() Notifier) *Reconciler {
	return &Reconciler{
		root: root, open: open,
		cgroupLock: make(chan struct{}, 1), followers: make(map[string]*follower),
	}
}

// Add lets a container follow its source, and writes its cgroup before it returns. A container whose source is its
// parent has no list of its own, and does not follow. Errors: errdefs.ErrNotFound if the
// source or the cgroup does not exist, ErrInvalidArgument if the source cannot be one, ErrAlreadyExists if the id is
// known, ErrFailedPrecondition if there is nothing to assign.
func (r *Reconciler) Add(ctx context.Context, c Request) error {
	source, err := locate(r.root, c.Source, c.Dir)
	if err != nil || source == filepath.Dir(c.Dir) { // the kernel gives a container what its parent has
		return err
	}
	f := &follower{Request: c, state: State{Source: source}, own: inode(c.Dir)}
	r.change(func() {
		switch {
		case r.stopped:
			err = fmt.Errorf("the reconciler is stopped: %w", errdefs.ErrFailedPrecondition)
		case r.followers[c.ID] != nil:
			err = fmt.Errorf("follows %s: %w", r.followers[c.ID].state.Source, errdefs.ErrAlreadyExists)
		default:
			err = r.add(ctx, f)
		}
	})
	return err
}

// add is Add with cgroupLock held.
func (r *Reconciler) add(ctx context.Context, f *follower) error {
	r.followers[f.ID] = f
	r.updateWatches() // first, so that no later change goes unnoticed
	err := f.reconcile()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, applyTimeout)
		defer cancel()
		err = f.notifyApplied(ctx)
	}
	if err != nil {
		delete(r.followers, f.ID)
		return err
	}
	r.states.Store(f.ID, f.state)
	return nil
}

// SavedFollower is a container that follows, in the state for a successor.
type SavedFollower struct {
	Source     string // State.Source
	CPUs, Mems string
	Writes     int
	Pinned     bool
	Own        uint64 // inode of the container's cgroup
	Applied    bool   // Apply took CPUs and Mems
}

// Freeze waits for the end of a reconciliation, after which none begins until thaw. When ctx ends first, the error is
// errdefs.ErrUnavailable.
func (r *Reconciler) Freeze(ctx context.Context) (thaw func(), err error) {
	select {
	case r.cgroupLock <- struct{}{}:
		return func() { <-r.cgroupLock }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("under way: CPUs of a container follow their source: %w", errdefs.ErrUnavailable)
	}
}

// saved returns the state of a container of a frozen Reconciler for a successor, or nil if the container does not
// follow. The successor assigns anew what has changed meanwhile.
func (r *Reconciler) saved(id string) *SavedFollower {
	f := r.followers[id]
	if f == nil {
		return nil
	}
	return &SavedFollower{
		Source: f.state.Source, CPUs: f.state.CPUs.String(), Mems: f.state.Mems.String(), Writes: f.state.Writes,
		Pinned: f.state.Pinned, Own: f.own, Applied: f.isApplied(),
	}
}

// restore lets a container follow as it did in a former program.
func (r *Reconciler) restore(c Request, s SavedFollower) {
	cpus, err := Parse(s.CPUs)
	mems, memsErr := Parse(s.Mems)
	if err = errors.Join(err, memsErr); err != nil {
		log.L.WithError(err).WithField("container", c.ID).Error("CPUs that a former program assigned")
	}
	f := &follower{Request: c, own: s.Own, state: State{
		Source: s.Source, CPUs: cpus, Mems: mems, Writes: s.Writes, Pinned: s.Pinned,
	}}
	if s.Applied {
		f.applied = new(f.state)
	}
	r.change(func() {
		r.followers[c.ID] = f
		r.states.Store(c.ID, f.state)
		if !s.Pinned {
			r.updateWatches()
		}
	})
}

// Remove stops a container from following. It does nothing for an unknown id.
func (r *Reconciler) Remove(id string) {
	r.change(func() {
		delete(r.followers, id)
		r.states.Delete(id)
	})
}

// Pin makes a container keep its list, since it gets a cpuset of its own, or follow again if that was refused. It does
// nothing for an unknown id.
func (r *Reconciler) Pin(id string, pinned bool) {
	r.change(func() {
		f := r.followers[id]
		if f == nil || f.state.Pinned == pinned {
			return
		}
		f.state.Pinned = pinned
		f.applied = nil // Apply has to write it again
		if !pinned {
			r.updateWatches()
			r.reconcile(f)
		}
		r.states.Store(f.ID, f.state)
	})
}

// Stop stops all containers from following, waits for the goroutine, and makes Add refuse.
func (r *Reconciler) Stop() {
	r.change(func() {
		r.stopped = true
		clear(r.followers)
	})
}

// State returns the last state of a container, or false if it does not follow. It does not wait for a reconciliation.
func (r *Reconciler) State(id string) (State, bool) {
	v, _ := r.states.Load(id)
	s, ok := v.(State)
	return s, ok
}

// change runs do with cgroupLock held, and then ends the goroutine if no container follows any more.
func (r *Reconciler) change(do func()) {
	r.cgroupLock <- struct{}{}
	do()
	var last *loop
	if len(r.following()) == 0 {
		last, r.loop = r.loop, nil
	}
	<-r.cgroupLock // released first: the goroutine may be waiting for it
	if last != nil {
		last.Close()
		last.ended.Wait()
	}
}

// following returns the containers that are not pinned, in the order of their ids.
func (r *Reconciler) following() []*follower {
	var fs []*follower
	for _, id := range slices.Sorted(maps.Keys(r.followers)) {
		if f := r.followers[id]; !f.state.Pinned {
			fs = append(fs, f)
		}
	}
	return fs
}

const (
	// resyncMin and resyncMax bound the random time between two readings without notification, so that the shims of a
	// node do not wake up together.
	resyncMin = 1 * time.Second
	resyncMax = 3 * time.Second
	// gap is the least time between two reconciliations.
	gap = 5 * time.Millisecond
	// applyTimeout bounds the calls of Apply in one reconciliation, for which Delete may have to wait.
	applyTimeout = 2 * time.Second
)

// loop is the goroutine of a Reconciler, which reconciles when the notifier says so.
type loop struct {
	Notifier
	ended sync.WaitGroup
}

// updateWatches starts the goroutine and watches the files of the containers, with cgroupLock held.
func (r *Reconciler) updateWatches() {
	if r.loop == nil {
		l := &loop{Notifier: r.open()}
		r.loop = l
		l.ended.Go(func() { r.run(l) }) // ends with the last container that follows, or by Stop; change joins it
	}
	var files, dirs []string
	for _, f := range r.following() {
		more, dir := f.watched(r.root)
		files, dirs = append(files, more...), append(dirs, dir)
	}
	err := r.loop.Watch(unique(files), unique(dirs))
	if err != nil && err.Error() != r.watchError {
		r.watchError = err.Error()
		log.L.Warnf("cpuset: changes are seen after up to %v: %s", resyncMax, r.watchError)
	}
}

func unique(paths []string) []string { return slices.Compact(slices.Sorted(slices.Values(paths))) }

func (r *Reconciler) run(l *loop) {
	for l.Wait(resyncMin + rand.N(resyncMax-resyncMin)) { //nolint:gosec // nobody gains by a guess of it
		r.reconcileAll(l)
		<-time.After(gap)
	}
}

// reconcileAll does nothing if l was ended while it waited for cgroupLock.
func (r *Reconciler) reconcileAll(l *loop) {
	r.cgroupLock <- struct{}{}
	defer func() { <-r.cgroupLock }()
	if r.loop == l {
		r.updateWatches()
		r.reconcile(r.following()...)
	}
}

// reconcile reconciles containers with cgroupLock held. No cgroup waits for the Apply of another.
func (r *Reconciler) reconcile(fs ...*follower) {
	ctx, cancel := context.WithTimeout(context.Background(), applyTimeout)
	defer cancel()
	errs := make([]error, len(fs))
	for i, f := range fs {
		errs[i] = f.reconcile()
	}
	for i, f := range fs {
		// Also after an error: CPUs may have followed, and memory nodes not.
		f.recordResult(errors.Join(errs[i], f.notifyApplied(ctx)))
		r.states.Store(f.ID, f.state)
	}
}
