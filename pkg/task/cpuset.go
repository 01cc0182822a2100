// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// cpusetRoot is where the hierarchy of cgroup v2 is mounted (pkg/cgroup, Detect).
const cpusetRoot = "/sys/fs/cgroup"

// cpusetSource is a container's wish for the CPUs of another cgroup. The zero
// value is none.
type cpusetSource struct {
	path string // or cpuset.Parent; empty for none
	mems bool   // its memory nodes as well
	key  string // which asked for it
}

// cpusetSourceOf reads the wish: a cpuset of the container's own goes before
// its annotations, and these before the runtime options.
func cpusetSourceOf(spec *specs.Spec, o options.Options, mode cgroup.Mode) (cpusetSource, error) {
	w := cpusetSource{path: o.CpusetSource, mems: o.CpusetMems, key: "runtime options: CpusetSource"}
	if path, ok := spec.Annotations[annotationSource]; ok {
		w.path, w.key = path, specFile+": annotations: "+annotationSource
		if path == "" {
			return w, fmt.Errorf("%s %q: must be %s or the path of a cgroup: %w", w.key, path, cpuset.Parent, errdefs.ErrInvalidArgument)
		}
	}
	switch text, ok := spec.Annotations[annotationMems]; {
	case !ok:
	case text != "true" && text != "false":
		return w, fmt.Errorf("%s: annotations: %s %q: must be true or false: %w", specFile, annotationMems, text, errdefs.ErrInvalidArgument)
	case text == "true" && w.path == "":
		return w, fmt.Errorf("%s: annotations: %s %q: needs %s: %w", specFile, annotationMems, text, annotationSource, errdefs.ErrInvalidArgument)
	default:
		w.mems = text == "true"
	}
	switch {
	case w.path == "" || w.overruled(spec.Linux.Resources):
		return cpusetSource{}, nil
	case mode != cgroup.Unified:
		return w, fmt.Errorf("%s %q: needs cgroup v2 alone, which is the unified layout; that of this machine is %s: %w", w.key, w.path, mode, errdefs.ErrFailedPrecondition)
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

// engineFor is the engine that makes the cpuset of a container what is wished.
func (m *Manager) engineFor(spec *specs.Spec, o options.Options) (process.Runtime, error) {
	source, err := cpusetSourceOf(spec, o, m.cgroups)
	if err != nil || source.path == "" {
		return m.engine, err
	}
	return follower{Runtime: m.engine, cpusets: m.cpusets, source: source}, nil
}

// follower is an engine whose containers have the cpuset of a source, from
// before their programs run.
type follower struct {
	process.Runtime
	cpusets *cpuset.Reconciler
	source  cpusetSource
}

// Create implements process.Runtime.
func (e follower) Create(ctx context.Context, c process.Config, s *stdio.Streams) (process.RuntimeContainer, error) {
	runtime, err := e.Runtime.Create(ctx, c, s)
	if err != nil {
		return nil, err
	}
	r := &following{RuntimeContainer: runtime, id: c.ID, cpusets: e.cpusets, source: e.source}
	if c.Checkpoint != "" {
		return r, nil // it has no cgroup yet
	}
	if err := r.follow(ctx); err != nil {
		kill(runtime.Init())
		return nil, errors.Join(err, runtime.Discard())
	}
	return r, nil
}

// kill ends a process of which nobody knows yet.
func kill(h process.Handle) {
	_ = h.Signal(syscall.SIGKILL) // it may be dead already
	h.Wait()
}

// following is a container whose cpuset is that of a source.
type following struct {
	process.RuntimeContainer
	id      string
	cpusets *cpuset.Reconciler
	source  cpusetSource
	pinned  bool // it was given a cpuset of its own; guarded by the turn of init
}

func (r *following) follow(ctx context.Context) error {
	err := r.cpusets.Add(ctx, cpuset.Container{
		ID: r.id, Source: r.source.path, Dir: r.Cgroup().Path("cpuset"), Mems: r.source.mems,
		Apply: func(ctx context.Context, cpus, mems cpuset.Set) error {
			return r.KeepCPUSet(ctx, cpus.String(), mems.String())
		},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", r.source.key, err)
	}
	return nil
}

// Restore implements process.RuntimeContainer. The processes run when it is known where.
func (r *following) Restore(ctx context.Context, s *stdio.Streams) (process.Handle, error) {
	init, err := r.RuntimeContainer.Restore(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := r.follow(ctx); err != nil {
		kill(init)
		return nil, err
	}
	return init, nil
}

// Update implements process.RuntimeContainer. A cpuset that it sets is kept, as nobody
// but its sender knows when it should end.
func (r *following) Update(resources *specs.LinuxResources) error {
	if r.pinned || !r.source.overruled(resources) {
		return r.RuntimeContainer.Update(resources)
	}
	r.cpusets.Pin(r.id)
	if err := r.RuntimeContainer.Update(resources); err != nil {
		r.cpusets.Unpin(r.id)
		return err
	}
	r.pinned = true
	return nil
}

// Destroy implements process.RuntimeContainer.
func (r *following) Destroy() error {
	r.cpusets.Remove(r.id)
	return r.RuntimeContainer.Destroy()
}

// Discard implements process.RuntimeContainer.
func (r *following) Discard() error {
	r.cpusets.Remove(r.id)
	return r.RuntimeContainer.Discard()
}

// Close ends the goroutine that the sandbox may have. It is for the end of the
// shim, which containers may outlive. They keep the cpusets that they have.
func (m *Manager) Close() { m.cpusets.Stop() }

// CPUSet tells how the container follows the CPUs of another cgroup, and false
// if it does not.
func (c *Container) CPUSet() (cpuset.State, bool) { return c.cpusets.State(c.ID()) }
