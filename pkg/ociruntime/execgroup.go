// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
)

// execGroups are the cgroups of a container's execs with limits.
type execGroups struct {
	parent *cgroup.Cgroup // the container's
	limits *limit.Limits  // of each exec that has none of its own; nil for none

	mu sync.Mutex // held while cgroups are made and removed, which never blocks
	// +checklocks:mu
	last int // number in the name of the last one
	// +checklocks:mu
	occupied []*cgroup.Cgroup // of execs that have ended; those that wait longest come first
}

// initLeaf is the child cgroup, on v2, of a container's processes that are not execs with limits.
const initLeaf = "init"

// prepare makes limits of execs possible, before any exec runs. It fails if the limits that all execs have are not.
func (g *execGroups) prepare() error {
	if g.limits == nil {
		return nil
	}
	if !g.parent.Exists() { // the shim is not root, or only in a user namespace
		return fmt.Errorf("exec-limits: the container has no cgroup: %w", errdefs.ErrFailedPrecondition)
	}
	if err := g.parent.Delegate(initLeaf); err != nil {
		return err
	}
	if err := canLimit(g.parent, g.limits); err != nil {
		return fmt.Errorf("exec-limits: %w", err)
	}
	return nil
}

// execGroup is the cgroup of one exec.
type execGroup struct {
	*cgroup.Cgroup
	limits   *limit.Limits
	paths    map[string]string // of a process in it, by controller
	subPaths map[string]string // below the container's, as libcontainer takes them
}

// make makes a cgroup for an exec with limits. The limit of memory already applies while the exec is started.
func (g *execGroups) make(l *limit.Limits) (*execGroup, error) {
	group, err := g.makeDir(l)
	if err != nil {
		return nil, fmt.Errorf("cgroup of the exec: %w", err)
	}
	if l != g.limits { // which prepare has checked
		err = canLimit(g.parent, l)
	}
	if err == nil && l.Memory != 0 {
		err = group.LimitMemory(l.Memory)
	}
	if err != nil {
		g.remove(group)
		return nil, fmt.Errorf("limits of the exec: %w", err)
	}
	return group, nil
}

// makeDir skips names of cgroups that the container has made.
func (g *execGroups) makeDir(l *limit.Limits) (*execGroup, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		g.last++
		name := fmt.Sprintf("exec-%d", g.last)
		group, err := g.parent.MakeChild(name)
		switch {
		case errdefs.IsAlreadyExists(err):
			continue
		case err != nil:
			return nil, err
		}
		paths, subPaths := g.parent.ChildPaths(group, name), map[string]string{}
		for controller, dir := range paths {
			// To libcontainer "" means all hierarchies, so in hybrid mode that of v2 is left out.
			if dir != g.parent.Path(controller) && (controller != "" || group.Unified()) {
				subPaths[controller] = name
			}
		}
		return &execGroup{group, l, paths, subPaths}, nil
	}
}

const (
	// emptyTimeout is how long the kernel may take to notice that a cgroup is empty.
	emptyTimeout = time.Second
	// triedAgain is how many cgroups of earlier execs are tried again: any number of programs may never end.
	triedAgain = 8
)

// remove removes the cgroup of an exec that has ended, and some of those of earlier execs that have become empty since.
// An occupied cgroup is removed with the container at the latest.
func (g *execGroups) remove(group *execGroup) {
	ctx, cancel := context.WithTimeout(context.Background(), emptyTimeout)
	defer cancel()
	err := group.Remove(ctx)
	cancel() // so that the others are tried once
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.occupied), triedAgain)
	tried := slices.Clone(g.occupied[:n])
	left := slices.DeleteFunc(tried, func(c *cgroup.Cgroup) bool { return c.Remove(ctx) == nil })
	g.occupied = append(g.occupied[n:], left...)
	if err != nil {
		g.occupied = append(g.occupied, group.Cgroup)
	}
}

// discard kills all processes of an exec that failed, and removes the cgroup: the program may have run already.
func (g *execGroups) discard(group *execGroup) error {
	defer g.remove(group)
	return group.killAll()
}

// canLimit returns an error unless what l asks for is possible in children of a container's cgroup.
func canLimit(c *cgroup.Cgroup, l *limit.Limits) error {
	for _, needs := range []struct {
		name, controller string
		value            int64
	}{
		{"memory", "memory", l.Memory},
		{"pids", "pids", l.Pids},
		{"cpu-time", cgroup.CPUTimeController, int64(l.CPUTime)},
	} {
		if needs.value > 0 && !c.CanLimit(needs.controller) {
			return fmt.Errorf("limit %s: cgroup %s has no controller %s for execs: %w",
				needs.name, c, needs.controller, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// limitProcesses writes the limit of processes, which does not apply to those that start the exec.
func (g *execGroup) limitProcesses() error {
	if g.limits.Pids == 0 {
		return nil
	}
	return g.LimitPids(g.limits.Pids)
}

// killAll kills all processes of the exec, and waits until they have exited, unless one sleeps uninterruptibly.
func (g *execGroup) killAll() error {
	const treeTimeout = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
	defer cancel()
	return g.Kill(ctx)
}
