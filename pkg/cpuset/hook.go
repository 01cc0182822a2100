// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"context"
	"fmt"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Hook is the [process.Hook] and the [process.CPUSet] of a container that follows a source.
type Hook struct {
	process.NoHook
	reconciler *Reconciler
	mode       cgroups.CGMode
	source     settings.Value
	sources    []string // the first that exists is followed
	mems       bool     // its memory nodes as well
	id         string
	// The container has a cpuset of its own, or gets one by the update under way. Calls are one at a time.
	pinned, pinning bool
	former          *SavedFollower // until Resumed
}

// NewHook returns the hook of a container that follows the first of sources, parsed from source, that exists.
func NewHook(r *Reconciler, mode cgroups.CGMode, source settings.Value, sources []string, mems bool) *Hook {
	return &Hook{reconciler: r, mode: mode, source: source, sources: sources, mems: mems}
}

// Prepare implements [process.Hook]. A container whose configuration sets a cpuset does not follow.
func (h *Hook) Prepare(_ context.Context, c *process.Config) error {
	h.id, h.pinned = c.ID, h.overruled(c.Spec.Linux.Resources)
	if !h.pinned && h.mode != cgroups.Unified {
		return fmt.Errorf("%s %q: needs a machine with cgroup v2 alone, the unified layout: %w",
			h.source.Key, h.source.Text, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// overruled reports whether r sets a cpuset.
func (h *Hook) overruled(r *specs.LinuxResources) bool {
	if r == nil {
		return false
	}
	var cpus, mems string
	if r.CPU != nil {
		cpus, mems = r.CPU.Cpus, r.CPU.Mems
	}
	return cpus+r.Unified["cpuset.cpus"] != "" || h.mems && mems+r.Unified["cpuset.mems"] != ""
}

// Created implements [process.Hook].
func (h *Hook) Created(ctx context.Context, c process.RuntimeContainer, _ process.Handle) error {
	if h.pinned {
		return nil
	}
	err := fmt.Errorf("cpuset source %q: none of the list applies to container %q: "+
		"those with {alloc} or {task} need an id made by Nomad; add another: %w", h.source.Text, h.id, errdefs.ErrNotFound)
	for _, source := range h.sources {
		err = h.reconciler.Add(ctx, h.request(c, source))
		if !errdefs.IsNotFound(err) {
			break
		}
	}
	switch {
	case errdefs.IsNotFound(err) && len(h.sources) > 1:
		return fmt.Errorf("%s %q: none exists, the last: %w", h.source.Key, h.source.Text, err)
	case err != nil:
		return fmt.Errorf("%s: %w", h.source.Key, err)
	}
	return nil
}

func (h *Hook) request(c process.RuntimeContainer, source string) Request {
	return Request{
		ID: h.id, Source: source, Dir: c.Cgroup().Path("cpuset"), Mems: h.mems,
		Apply: func(ctx context.Context, cpus, mems Set) error {
			return c.KeepCPUSet(ctx, cpus.String(), mems.String())
		},
	}
}

// SavedHook is what the hook of a successor has to know.
type SavedHook struct {
	Source  settings.Value
	Sources []string
	Mems    bool
	Pinned  bool
	Follows *SavedFollower // nil: the container does not
}

// Save returns the state for a successor.
func (h *Hook) Save() SavedHook {
	return SavedHook{h.source, h.sources, h.mems, h.pinned, h.reconciler.saved(h.id)}
}

// RestoreHook returns the hook of a state. The container follows from Resumed on.
func RestoreHook(r *Reconciler, mode cgroups.CGMode, id string, s SavedHook) *Hook {
	h := NewHook(r, mode, s.Source, s.Sources, s.Mems)
	h.id, h.pinned, h.former = id, s.Pinned, s.Follows
	return h
}

// Resumed implements [process.Resumer].
func (h *Hook) Resumed(c process.RuntimeContainer) {
	if h.former != nil {
		h.reconciler.restore(h.request(c, ""), *h.former)
		h.former = nil
	}
}

// BeforeUpdate implements [process.CPUSet]. A cpuset that r sets is kept.
func (h *Hook) BeforeUpdate(r *specs.LinuxResources) {
	if h.pinning = !h.pinned && h.overruled(r); h.pinning {
		h.reconciler.Pin(h.id, true)
	}
}

// AfterUpdate implements [process.CPUSet].
func (h *Hook) AfterUpdate(err error) {
	switch {
	case !h.pinning:
	case err != nil:
		h.reconciler.Pin(h.id, false)
	default:
		h.pinned = true
	}
}

// BeforeDestroy implements [process.CPUSet].
func (h *Hook) BeforeDestroy() { h.reconciler.Remove(h.id) }
