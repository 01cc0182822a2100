// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/fail"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Time limits for the end of an exec's processes. One that sleeps uninterruptibly may outlast them.
const (
	killTimeout  = 50 * time.Millisecond // of Signal, until all are dead; Wait goes on with it
	treeTimeout  = 10 * time.Second      // of Wait, until all are dead after the leader was killed
	emptyTimeout = time.Second           // until the kernel notices that a cgroup is empty
)

// execCgroups are the cgroups of a container's execs.
type execCgroups struct {
	mu sync.Mutex // held while cgroups are removed, which never blocks
	// +checklocks:mu
	last int // number in the name of the last one
	// +checklocks:mu
	occupied []*cgroup.Cgroup
}

// execCgroup is the cgroup of one exec.
type execCgroup struct {
	*cgroup.Cgroup
	limits   *limit.Limits     // nil for none; see limit and limitPids
	paths    map[string]string // of a process in it, by controller
	subPaths map[string]string // below the container's, as libcontainer takes them
}

// newExecCgroup makes a cgroup for an exec, with limits unless they are nil. The container may have made cgroups of the
// same names.
func (c *container) newExecCgroup(l *limit.Limits) (*execCgroup, error) {
	group, err := c.makeExecCgroup(l)
	if err != nil {
		return nil, fmt.Errorf("cgroup of the exec: %w", err)
	}
	err = nil
	if l != c.config.ExecLimits { // which was checked by Create
		err = canLimit(c.cgroup, l)
	}
	if err == nil {
		err = fail.After("exec.limits", group.limit(c.cgroup))
	}
	if err != nil {
		c.removeExecCgroup(group.Cgroup, false)
		return nil, fmt.Errorf("limits of the exec: %w", err)
	}
	return group, nil
}

func (c *container) makeExecCgroup(l *limit.Limits) (*execCgroup, error) {
	var further []string
	if l != nil && l.CPUs > 0 {
		further = append(further, "cpu")
	}
	if l.LimitsIO() {
		further = append(further, c.cgroup.IOController())
	}
	c.execCgroups.mu.Lock()
	defer c.execCgroups.mu.Unlock()
	for {
		c.execCgroups.last++
		name := fmt.Sprintf("exec-%d", c.execCgroups.last)
		group, err := c.cgroup.MakeChild(name, further...)
		switch {
		case errdefs.IsAlreadyExists(err):
			continue
		case err != nil:
			return nil, err
		}
		paths, subPaths := c.cgroup.ChildPaths(group, name), map[string]string{}
		for controller, dir := range paths {
			// To libcontainer "" means all hierarchies, so in hybrid mode that of v2 is left out.
			if dir != c.cgroup.Path(controller) && (controller != "" || group.Unified()) {
				subPaths[controller] = name
			}
		}
		return &execCgroup{group, l, paths, subPaths}, nil
	}
}

// initLeaf is the child in which the processes of a container on v2 are that are no execs with limits.
const initLeaf = "init"

// prepareExecLimits makes the limits of execs possible, or returns an error if those that all have are not. It is
// called when no exec runs yet.
func (c *container) prepareExecLimits() error {
	if c.config.ExecLimits == nil {
		return nil
	}
	if !c.cgroup.Exists() { // the shim is not root, or only in a user namespace
		return fmt.Errorf("exec-limits: the container has no cgroup: %w", errdefs.ErrFailedPrecondition)
	}
	if err := c.cgroup.Delegate(initLeaf); err != nil {
		return err
	}
	if err := canLimit(c.cgroup, c.config.ExecLimits); err != nil {
		return fmt.Errorf("exec-limits: %w", err)
	}
	return nil
}

// canLimit returns an error unless what l asks for is possible in children of a container's cgroup.
func canLimit(c *cgroup.Cgroup, l *limit.Limits) error {
	if l == nil {
		return nil
	}
	var errs []error
	for _, needs := range []struct {
		name, controller string
		value            int64
	}{
		{"memory", "memory", l.Memory},
		{"pids", "pids", l.Pids},
		{"cpus", "cpu", l.CPUs},
		{"read-bps", c.IOController(), l.ReadBPS},
		{"write-bps", c.IOController(), l.WriteBPS},
		{"cpu-time", cgroup.CPUTimeController, int64(l.CPUTime)},
	} {
		if needs.value > 0 && !c.CanLimit(needs.controller) {
			errs = append(errs, fmt.Errorf("limit %s: cgroup %s has no controller %s for execs: %w",
				needs.name, c, needs.controller, errdefs.ErrFailedPrecondition))
		}
	}
	return errors.Join(errs...)
}

// limit writes the limits that hold for the start of the exec too.
func (g *execCgroup) limit(parent *cgroup.Cgroup) error {
	if g.limits == nil {
		return nil
	}
	var errs []error
	if l := g.limits; l.Memory > 0 {
		errs = append(errs, g.LimitMemory(l.Memory, l.Swap))
	}
	if l := g.limits; l.CPUs > 0 {
		errs = append(errs, g.LimitCPU(l.CPUs))
	}
	if l := g.limits; l.LimitsIO() {
		errs = append(errs, g.LimitIO(parent, l.ReadBPS, l.WriteBPS))
	}
	return errors.Join(errs...)
}

// limitPids writes the limit of processes, which does not hold for those that start the exec.
func (g *execCgroup) limitPids() error {
	if g.limits == nil || g.limits.Pids == 0 {
		return nil
	}
	return g.LimitPids(g.limits.Pids)
}

// execIn starts lp in group. When it fails, nothing is left of either: a program whose terminal did not come, for
// example, ran already and may have started others.
func (c *container) execIn(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, group *execCgroup,
) (process.Handle, error) {
	h, err := c.startExec(ctx, lp, s, group)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
		defer cancel()
		err = errors.Join(err, fail.After("exec-undo.kill", group.Kill(ctx, unix.SIGKILL)))
		c.removeExecCgroup(group.Cgroup, true)
		return nil, err
	}
	return &cgroupHandle{handle: h, container: c, group: group}, nil
}

// removeExecCgroup removes the cgroup of an exec that has ended, and those of earlier execs that have got empty since.
// If its processes were killed, the cgroup has emptyTimeout to get empty. An occupied one is removed with the container
// at the latest.
func (c *container) removeExecCgroup(group *cgroup.Cgroup, killed bool) {
	if killed {
		ctx, cancel := context.WithTimeout(context.Background(), emptyTimeout)
		defer cancel()
		_ = group.Remove(ctx) // tried again below
	}
	c.execCgroups.mu.Lock()
	defer c.execCgroups.mu.Unlock()
	once, cancel := context.WithCancel(context.Background())
	cancel()
	c.execCgroups.occupied = slices.DeleteFunc(append(c.execCgroups.occupied, group),
		func(g *cgroup.Cgroup) bool { return g.Remove(once) == nil })
}

// cgroupHandle is the leader of an exec in a cgroup of its own. It implements process.CgroupHandle.
type cgroupHandle struct {
	*handle
	container *container
	group     *execCgroup
	killed    atomic.Bool                   // by Signal, or by others, which Wait notices
	final     atomic.Pointer[process.Usage] // set by Wait
	account   cgroup.Account                // of one with limits, set by Wait
}

// Signal sends SIGKILL to the whole cgroup, and other signals to the leader.
func (g *cgroupHandle) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		return g.handle.Signal(sig)
	}
	g.killed.Store(true) // before the leader can be dead because of it
	if err := g.handle.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := g.group.Kill(ctx, sig); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("kill the processes of the exec: %w", err)
	}
	return nil
}

// Wait waits for the leader, and, if that was killed, for the death of the others.
func (g *cgroupHandle) Wait() process.Exit {
	exit := g.handle.Wait()
	if g.handle.sigkilled { // from within the container or from the host, or when memory ran out
		g.killed.Store(true)
	}
	if g.killed.Load() || g.group.limits != nil && !g.group.IsEmpty() { // a run with limits ends as a whole
		g.killed.Store(true)
		ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
		defer cancel()
		if err := g.group.Kill(ctx, unix.SIGKILL); err != nil {
			g.log().WithError(err).Error("kill the processes of an exec")
		}
	}
	u := g.readFinal()
	if !u.CgroupTotal {
		u.Memory = g.maxRSS
	}
	g.final.Store(&u)
	return exit
}

// Cgroup implements process.CgroupHandle.
func (g *cgroupHandle) Cgroup() *cgroup.Cgroup { return g.group.Cgroup }

// Usage implements process.CgroupHandle.
func (g *cgroupHandle) Usage() process.Usage {
	if final := g.final.Load(); final != nil {
		return *final
	}
	return g.readUsage()
}

func (g *cgroupHandle) readUsage() process.Usage { return g.usage(g.group.Usage()) }

func (g *cgroupHandle) usage(u cgroup.Usage, err error) process.Usage {
	if err != nil && !errdefs.IsNotFound(err) {
		g.log().WithError(err).Warn("usage of an exec")
	}
	return process.Usage{CPU: u.CPU, Memory: u.Memory, CgroupTotal: u.Memory > 0}
}

// readFinal reads the usage of an exec that has ended.
func (g *cgroupHandle) readFinal() process.Usage {
	if g.group.limits == nil {
		return g.readUsage()
	}
	var err error
	g.account, err = g.group.Account()
	u := g.usage(g.account.Usage, err)
	if !u.CgroupTotal {
		g.account.Memory = g.maxRSS
	}
	return u
}

// Account implements process.CgroupHandle.
func (g *cgroupHandle) Account() cgroup.Account { return g.account }

// Release implements process.CgroupHandle.
func (g *cgroupHandle) Release() { g.container.removeExecCgroup(g.group.Cgroup, g.killed.Load()) }

func (g *cgroupHandle) log() *log.Entry {
	return log.L.WithField("container", g.container.config.ID).WithField("cgroup", g.group.String())
}
