// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/sandbox"
	"sandbox.internal/shim/pkg/task"
)

// State is a unit in the state for a successor.
type State struct {
	ID, Bundle string
	Tasks      *task.State
	Pod        *sandbox.State `json:",omitempty"`
}

// Freeze freezes all units until thaw. No call is under way. After an error nothing is frozen, and the error says what
// is busy.
func (g *Group) Freeze(ctx context.Context) (thaw func(), err error) {
	var thaws []func()
	thaw = func() {
		for _, one := range slices.Backward(thaws) {
			one()
		}
	}
	for _, u := range g.All() {
		one, err := u.Pods.Freeze()
		if err == nil {
			thaws = append(thaws, one)
			err = u.Tasks.Freeze(ctx)
		}
		if err != nil {
			thaw()
			return nil, err
		}
		thaws = append(thaws, u.Tasks.Thaw)
	}
	return thaw, nil
}

// Save returns the state of frozen units. Saved is called after it, even if it fails.
func (g *Group) Save(h *handover.Saver) (all []State, err error) {
	for _, u := range g.All() {
		s := State{ID: u.ID, Bundle: u.Bundle}
		if s.Tasks, err = u.Tasks.Save(h); err != nil {
			return nil, err
		}
		if s.Pod, err = u.Pods.Save(h); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (g *Group) pods() (all []sandbox.Pod) {
	for _, u := range g.All() {
		if p := u.Pods.Pod(); p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Saved is [pod.Pod.Saved] of all pods.
func (g *Group) Saved() {
	for _, p := range g.pods() {
		p.Saved()
	}
}

// Leave is [pod.Pod.Leave] of all pods, of which the main thread holds one.
func (g *Group) Leave() (err error) {
	for _, p := range g.pods() {
		err = errors.Join(err, p.Leave())
	}
	return err
}

// Stay is [pod.Pod.Stay] of all pods.
func (g *Group) Stay() (err error) {
	for _, p := range g.pods() {
		err = errors.Join(err, p.Stay())
	}
	return err
}

// Restore adds the units of a state to a new Group. When all else is restored, enter has the main thread hold the
// namespaces that it held, which is the last that can fail, and begin lets the units run.
func (g *Group) Restore(
	l *handover.Loader, all []State, t *osthread.Thread, r *reaper.Reaper,
) (enter func() error, begin func(), err error) {
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("a shim without anything: %w", errdefs.ErrInvalidArgument)
	}
	enter = func() error { return nil }
	var begins []func()
	add := func(begin func(), failed error) {
		begins, err = append(begins, begin), errors.Join(err, failed)
	}
	for _, s := range all {
		u := g.add(s.ID, s.Bundle) // +checklocksignore: nobody else has the Group
		add(u.Tasks.Restore(l, s.Tasks))
		if s.Pod == nil || s.Pod.Pod == nil {
			continue
		}
		restored, failed := pod.Restore(l, s.Pod.Pod, t, r)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		add(restored.Begin, nil)
		add(u.Pods.Restore(s.Pod, restored))
		if restored.OnMainThread() {
			enter = restored.Enter
		}
	}
	return enter, func() {
		for _, begin := range begins {
			begin()
		}
	}, err
}
