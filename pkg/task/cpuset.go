// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// cpusetRoot is where the hierarchy of cgroup v2 is mounted (containerd/cgroups/v3, Mode).
const cpusetRoot = "/sys/fs/cgroup"

// cpusetSource is a container's wish for the CPUs of another cgroup. The zero
// value is none.
type cpusetSource struct {
	path string // or cpuset.Parent; empty for none
	mems bool   // its memory nodes as well
	key  string // which asked for it
}

// cpusetSourceOf is what s asks for, unless spec has a cpuset of the container's own.
func cpusetSourceOf(spec *specs.Spec, s settings.Settings, mode cgroups.CGMode) (cpusetSource, error) {
	w := cpusetSource{path: s.CPUSetSource.Text, mems: s.CPUSetMems, key: s.CPUSetSource.Key}
	switch {
	case w.path == "" || w.overruled(spec.Linux.Resources):
		return cpusetSource{}, nil
	case mode != cgroups.Unified:
		return w, fmt.Errorf("%s %q: needs a machine with cgroup v2 alone, the unified layout: %w",
			w.key, w.path, errdefs.ErrFailedPrecondition)
	}
	return w, nil
}

// overruled tells whether r sets what would be copied.
func (w cpusetSource) overruled(r *specs.LinuxResources) bool {
	if r == nil {
		return false
	}
	var cpus, mems string
	if r.CPU != nil {
		cpus, mems = r.CPU.Cpus, r.CPU.Mems
	}
	return cpus+r.Unified["cpuset.cpus"] != "" || w.mems && mems+r.Unified["cpuset.mems"] != ""
}

// cpusetHook gives a container the cpuset of a source, from before its program runs.
type cpusetHook struct {
	id      string
	cpusets *cpuset.Reconciler
	source  cpusetSource
	// Of an update under way, and of one before: it gives the container a cpuset of its own. Guarded by the turn of init.
	pinning, pinned bool
}

// Prepare implements process.CreateHook.
func (h *cpusetHook) Prepare(context.Context, *process.Config) error { return nil }

// Created implements process.CreateHook.
func (h *cpusetHook) Created(ctx context.Context, c process.RuntimeContainer, _ process.Handle) error {
	err := h.cpusets.Add(ctx, cpuset.Container{
		ID: h.id, Source: h.source.path, Dir: c.Cgroup().Path("cpuset"), Mems: h.source.mems,
		Apply: func(ctx context.Context, cpus, mems cpuset.Set) error {
			return c.KeepCPUSet(ctx, cpus.String(), mems.String())
		},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", h.source.key, err)
	}
	return nil
}

// BeforeUpdate implements process.CgroupHook. A cpuset that r sets is kept, as nobody but its sender knows when it should
// end.
func (h *cpusetHook) BeforeUpdate(r *specs.LinuxResources) {
	if h.pinning = !h.pinned && h.source.overruled(r); h.pinning {
		h.cpusets.Pin(h.id)
	}
}

// AfterUpdate implements process.CgroupHook.
func (h *cpusetHook) AfterUpdate(err error) {
	switch {
	case !h.pinning:
	case err != nil:
		h.cpusets.Unpin(h.id)
	default:
		h.pinned = true
	}
}

// BeforeDestroy implements process.CgroupHook.
func (h *cpusetHook) BeforeDestroy() { h.cpusets.Remove(h.id) }

// Removed implements process.CreateHook.
func (h *cpusetHook) Removed() error { return nil }

// Close ends the goroutine that the sandbox may have. It is for the end of the
// shim, which containers may outlive. They keep the cpusets that they have.
func (m *Manager) Close() { m.cpusets.Stop() }

// CPUSet tells how the container follows the CPUs of another cgroup, and false
// if it does not.
func (c *Container) CPUSet() (cpuset.State, bool) { return c.cpusets.State(c.ID()) }
