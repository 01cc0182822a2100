// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package group has the pods of a shim, of which each, or each container outside of pods, is a [Unit] with a registry
// and a pod of its own: what concerns one does not concern the others. A shim has one, or as many as start gives it, by
// [Group.Join], with the option PodsPerShim. It ends with the last one.
//
// There are no goroutines. Group.mu guards which units there are; it is held over nothing slower than a change of a
// directory, and no lock is taken after it but those of a task.Manager.
package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/task"
)

// Unit is a pod with its containers, or a container outside of pods.
type Unit struct {
	ID, Bundle string // of the pod, or of its first container
	Tasks      *task.Manager
	Pods       *sandbox.Controller // has one at most

	joined time.Time
}

// Config is what a Group needs.
type Config struct {
	Most    int // units; 1: all containers are in the first one
	Make    func(id, bundle string) *Unit
	Accepts func(bootstrap.JoinRequest) bool // whether the shim is right for a unit
	Open    func()                           // there is room for another unit
	Close   func()                           // there is none any more
	MoveLog func(bundle string) bool         // the unit that the log went to has ended; false if the log cannot go there
}

// joinTimeout is the time from Join to Create, for which the unit is kept. It is shorter than the one for which a shim
// without clients waits.
const joinTimeout = 10 * time.Second

// Group has the units of a shim.
type Group struct {
	config Config        // +checklocksignore: never changes
	done   chan struct{} // closed once, when the last unit has ended

	mu sync.Mutex
	// +checklocks:mu
	units map[string]*Unit // by id
	// +checklocks:mu
	joined map[string]*Unit // of containers that are to be created, by their ids
	// +checklocks:mu
	last *Unit // one that there was
	// +checklocks:mu
	log string // bundle of the unit whose fifo the log goes to
	// +checklocks:mu
	ended bool // no unit is added any more
	// +checklocks:mu
	closed bool // done is
}

// New returns a Group with the unit for which the shim was started, unless id is "". The log goes to bundle's fifo.
func New(c Config, id, bundle string) *Group {
	if c.Most <= 1 { // nobody looks for room
		c.Open, c.Close, c.MoveLog = func() {}, func() {}, func(string) bool { return false }
	}
	g := &Group{config: c, done: make(chan struct{}), units: map[string]*Unit{}, joined: map[string]*Unit{}, log: bundle}
	if id != "" {
		g.add(id, bundle)
	}
	return g
}

// +checklocksignore: called in New, or with the lock
func (g *Group) add(id, bundle string) *Unit {
	u := g.config.Make(id, bundle)
	u.ID, u.Bundle, u.joined = id, bundle, time.Now()
	g.units[id], g.last = u, u
	return u
}

// Shared reports whether there can be more units than one.
func (g *Group) Shared() bool { return g.config.Most > 1 }

// Others reports whether there are more units than one.
func (g *Group) Others() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.units) > 1
}

// Done returns a channel that is closed when the last unit has ended. There is none afterwards.
func (g *Group) Done() <-chan struct{} { return g.done }

// All returns the units in the order of their ids.
func (g *Group) All() []*Unit {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allLocked()
}

// +checklocks:g.mu
func (g *Group) allLocked() (all []*Unit) {
	for _, id := range slices.Sorted(maps.Keys(g.units)) {
		all = append(all, g.units[id])
	}
	return all
}

// Of returns the unit of a container or pod, or, if nobody knows the id, one to which it is unknown too.
func (g *Group) Of(id string) *Unit {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ofLocked(id)
}

// +checklocks:g.mu
func (g *Group) ofLocked(id string) *Unit {
	if u := g.units[id]; u != nil {
		return u
	}
	if !g.Shared() {
		return g.last
	}
	for _, knows := range []func(*task.Manager, string) bool{(*task.Manager).Has, (*task.Manager).Had} {
		for _, u := range g.units {
			if knows(u.Tasks, id) {
				return u
			}
		}
	}
	return g.last
}

// ToCreate returns the unit in which a container or a pod is to be created: the one that it has joined, that of the pod
// that its configuration names, for which containerd asks no start with the Sandbox API, or a new one.
//
// Near the limit of descriptors the error is errdefs.ErrResourceExhausted.
func (g *Group) ToCreate(id, bundle string) (*Unit, error) {
	if err := room(leftForContainer); err != nil {
		return nil, fmt.Errorf("container or sandbox %q: %w", id, err)
	}
	g.mu.Lock()
	u := cmp.Or(g.joined[id], g.units[id])
	delete(g.joined, id)
	if u != nil {
		u.joined = time.Now()
	}
	g.mu.Unlock()
	if u != nil {
		return u, nil
	}
	pod := id
	if g.Shared() {
		var err error
		if pod, err = bootstrap.ShimGroup(bundle, id); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.units[pod] != nil:
		return g.units[pod], nil
	case !g.Shared():
		return g.last, nil
	case g.ended:
		return nil, fmt.Errorf("the shim is shutting down: %w", errdefs.ErrUnavailable)
	}
	return g.add(id, bundle), nil
}

// Join adds a unit, or to one a container that is to be created. It returns false if the shim does not take it.
func (g *Group) Join(r bootstrap.JoinRequest) bool {
	g.Reap()
	accepts := g.Shared() && r.Pod == r.ID && g.config.Accepts(r) // which reads a file
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.units[r.Pod]
	switch {
	case g.ended:
		return false
	case u == nil && !g.Shared(): // the annotation of a group, of which there is one
		u = g.last
	case u == nil && r.Pod != r.ID, u != nil && r.Pod == r.ID && !u.Tasks.Idle():
		return false // there is no such pod any more, or there is one already
	case u == nil:
		if len(g.units) >= g.config.Most || !accepts || room(leftForPod) != nil {
			g.config.Close()
			return false
		}
		u = g.add(r.ID, r.Bundle)
		if len(g.units) >= g.config.Most {
			g.config.Close()
		}
	}
	g.joined[r.ID], u.joined = u, time.Now()
	return true
}

// Shutdown ends the unit of a container, if it has neither containers nor a pod.
func (g *Group) Shutdown(id string) {
	if u := g.known(id); u != nil {
		u.Tasks.Shutdown()
	}
	g.Reap()
}

// ShutdownPod is sandbox.Controller.Shutdown.
func (g *Group) ShutdownPod(ctx context.Context, id string) error {
	defer g.Reap()
	if u := g.known(id); u != nil {
		return u.Pods.Shutdown(ctx, id)
	}
	return fmt.Errorf("sandbox %q: not created: %w", id, errdefs.ErrNotFound)
}

// known is Of, or nil for an id that nobody knows: the unit of Of may wait for its first container.
func (g *Group) known(id string) *Unit {
	u := g.Of(id)
	if g.Shared() && u.ID != id && !u.Tasks.Has(id) && !u.Tasks.Had(id) {
		return nil
	}
	return u
}

// ShutdownIdle is sandbox.Controller.ShutdownIdle of all units.
func (g *Group) ShutdownIdle() {
	for _, u := range g.All() {
		u.Pods.ShutdownIdle()
	}
	g.Reap()
}

// ShutdownAbandoned is ShutdownIdle of the units whose bundles are gone. A containerd that cannot record the socket
// removes the bundle, and stays connected (core/runtime/v2/binary.go).
func (g *Group) ShutdownAbandoned() {
	for _, u := range g.All() {
		if _, err := os.Stat(u.Bundle); errors.Is(err, os.ErrNotExist) {
			u.Pods.ShutdownIdle()
		}
	}
	g.Reap()
}

// StopContainers is task.Manager.StopContainers of all units. No unit is added any more.
func (g *Group) StopContainers() error {
	g.mu.Lock()
	g.ended = true
	all := g.allLocked()
	g.config.Close()
	g.mu.Unlock()
	errs := make([]error, len(all))
	var stops sync.WaitGroup
	for i, u := range all {
		stops.Go(func() { errs[i] = u.Tasks.StopContainers() })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// CloseAll is task.Manager.Close of all units.
func (g *Group) CloseAll() {
	for _, u := range g.All() {
		u.Tasks.Close()
	}
}

// Reap removes the units that have ended, and those for which nobody has come.
func (g *Group) Reap() {
	for _, u := range g.reap() {
		u.Tasks.Close()
	}
}

func (g *Group) reap() (gone []*Unit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, u := range g.units {
		if g.Shared() && time.Since(u.joined) > joinTimeout {
			u.Tasks.Shutdown() // unless it has something
		}
		select {
		case <-u.Tasks.Done():
			gone = append(gone, u)
			delete(g.units, id)
			maps.DeleteFunc(g.joined, func(_ string, of *Unit) bool { return of == u })
		default:
		}
	}
	g.moveLogLocked()
	switch {
	case len(g.units) == 0 && !g.closed:
		g.ended, g.closed = true, true
		close(g.done)
		g.config.Close()
	case len(gone) > 0 && !g.ended && len(g.units) < g.config.Most:
		g.config.Open()
	}
	return gone
}

// moveLogLocked moves the log if its unit has ended.
//
// +checklocks:g.mu
func (g *Group) moveLogLocked() {
	all, bundle := g.allLocked(), g.log
	if slices.ContainsFunc(all, func(u *Unit) bool { return u.Bundle == bundle }) {
		return
	}
	for _, u := range all {
		if g.config.MoveLog(u.Bundle) {
			g.log = u.Bundle
			return
		}
	}
}
