// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package execgroup makes and removes the cgroups of a container's execs with limits.
package execgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
)

// emptyTimeout is how long the kernel may take to notice that a cgroup is empty.
const emptyTimeout = time.Second

// Groups are the cgroups of the execs of one container.
type Groups struct {
	parent *cgroup.Cgroup // the container's
	limits *limit.Limits  // of each exec that has none of its own; nil for none

	mu sync.Mutex // held while cgroups are made and removed, which never blocks
	// +checklocks:mu
	last int // number in the name of the last one
	// +checklocks:mu
	occupied []*cgroup.Cgroup
}

// New returns the groups of the container with the cgroup parent. Its execs have limits, unless that is nil.
func New(parent *cgroup.Cgroup, limits *limit.Limits) *Groups {
	return &Groups{parent: parent, limits: limits}
}

// initLeaf is the child cgroup, on v2, of a container's processes that are not execs with limits.
const initLeaf = "init"

// Prepare makes limits of execs possible. It returns an error if the limits that all execs have are not. It is called
// before any exec runs.
func (g *Groups) Prepare() error {
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

// Group is the cgroup of one exec.
type Group struct {
	*cgroup.Cgroup
	Limits   *limit.Limits
	Paths    map[string]string // of a process in it, by controller
	SubPaths map[string]string // below the container's, as libcontainer takes them
}

// Make makes a cgroup for an exec with limits. It skips names of cgroups that the container has made.
func (g *Groups) Make(l *limit.Limits) (*Group, error) {
	group, err := g.make(l)
	if err != nil {
		return nil, fmt.Errorf("cgroup of the exec: %w", err)
	}
	err = nil
	if l != g.limits { // which Prepare has checked
		err = canLimit(g.parent, l)
	}
	if err == nil {
		err = group.limitMemory()
	}
	if err != nil {
		g.Remove(group)
		return nil, fmt.Errorf("limits of the exec: %w", err)
	}
	return group, nil
}

func (g *Groups) make(l *limit.Limits) (*Group, error) {
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
		return &Group{group, l, paths, subPaths}, nil
	}
}

// Remove removes the cgroup of an exec that has ended, and some of those of earlier execs, if they have become empty
// since. The cgroup has emptyTimeout to become empty. An occupied cgroup is removed with the container at the latest.
func (g *Groups) Remove(group *Group) {
	ctx, cancel := context.WithTimeout(context.Background(), emptyTimeout)
	defer cancel()
	err := group.Cgroup.Remove(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	once, cancel := context.WithCancel(context.Background())
	cancel()
	n := min(len(g.occupied), triedAgain)
	tried := slices.Clone(g.occupied[:n])
	left := slices.DeleteFunc(tried, func(c *cgroup.Cgroup) bool { return c.Remove(once) == nil })
	g.occupied = append(g.occupied[n:], left...) // those that wait longest come first
	if err != nil {
		g.occupied = append(g.occupied, group.Cgroup)
	}
}

// triedAgain is how many cgroups of earlier execs are tried again when another one ends: any number of programs may
// sleep uninterruptibly.
const triedAgain = 8

// canLimit returns an error unless what l asks for is possible in children of a container's cgroup.
func canLimit(c *cgroup.Cgroup, l *limit.Limits) error {
	var errs []error
	for _, needs := range []struct {
		name, controller string
		value            int64
	}{
		{"memory", "memory", l.Memory},
		{"pids", "pids", l.Pids},
		{"cpu-time", cgroup.CPUTimeController, int64(l.CPUTime)},
	} {
		if needs.value > 0 && !c.CanLimit(needs.controller) {
			errs = append(errs, fmt.Errorf("limit %s: cgroup %s has no controller %s for execs: %w",
				needs.name, c, needs.controller, errdefs.ErrFailedPrecondition))
		}
	}
	return errors.Join(errs...)
}

// limitMemory writes the limit of memory, which already applies while the exec is started.
func (g *Group) limitMemory() error {
	if g.Limits.Memory == 0 {
		return nil
	}
	return g.LimitMemory(g.Limits.Memory)
}

// LimitProcesses writes the limit of processes, which does not apply to those that start the exec.
func (g *Group) LimitProcesses() error {
	if g.Limits.Pids == 0 {
		return nil
	}
	return g.LimitPids(g.Limits.Pids)
}
