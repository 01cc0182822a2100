// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
)

// initLeaf is the child cgroup, on v2, of a container's processes that are not execs with limits.
const initLeaf = "init"

// prepareExecGroups makes limits of execs possible, before any exec runs. It fails if those that all execs have are
// not.
func (c *container) prepareExecGroups() error {
	limits := c.config.ExecLimits
	if limits == nil {
		return nil
	}
	if !c.cgroup.Exists() { // the shim is not root, or only in a user namespace
		return fmt.Errorf("exec-limits: the container has no cgroup: %w", errdefs.ErrFailedPrecondition)
	}
	if err := c.cgroup.Delegate(initLeaf); err != nil {
		return err
	}
	trial, err := c.newExecGroup(limits)
	if err != nil {
		return fmt.Errorf("exec-limits: %w", err)
	}
	defer trial.remove()
	return trial.limitProcesses()
}

// execGroup is the cgroup of one exec with limits.
type execGroup struct {
	*cgroup.Cgroup
	name     string
	limits   *limit.Limits
	paths    map[string]string // of a process in it, by controller
	subPaths map[string]string // below the container's, as libcontainer takes them
}

// newExecGroup makes a cgroup for an exec. The limit of memory already applies while the exec is started.
func (c *container) newExecGroup(l *limit.Limits) (*execGroup, error) {
	group, err := c.makeExecGroup(l)
	if err != nil {
		return nil, fmt.Errorf("cgroup of the exec: %w", err)
	}
	if l.CPUTime != 0 && !group.Unified() && group.Path("cpuacct") == "" { // which Usage takes for 0
		group.remove()
		return nil, fmt.Errorf("limit cpu-time: cgroup %s has no controller cpuacct: %w",
			c.cgroup, errdefs.ErrFailedPrecondition)
	}
	if l.Memory != 0 {
		if err := group.LimitMemory(l.Memory); err != nil {
			group.remove()
			return nil, fmt.Errorf("limits of the exec: %w", err)
		}
	}
	return group, nil
}

// makeExecGroup skips names of cgroups that the container has made.
func (c *container) makeExecGroup(l *limit.Limits) (*execGroup, error) {
	for {
		name := fmt.Sprintf("exec-%d", c.lastExecGroup.Add(1))
		_, err := c.cgroup.MakeChild(name)
		switch {
		case errdefs.IsAlreadyExists(err):
			continue
		case err != nil:
			return nil, err
		}
		return c.execGroup(name, l), nil
	}
}

// execGroup returns the cgroup of an exec that was made with this name.
func (c *container) execGroup(name string, l *limit.Limits) *execGroup {
	group := c.cgroup.Child(name)
	paths, subPaths := c.cgroup.ChildPaths(group, name), map[string]string{}
	for controller, dir := range paths {
		// To libcontainer "" means all hierarchies, so in hybrid mode that of v2 is left out.
		if dir != c.cgroup.Path(controller) && (controller != "" || group.Unified()) {
			subPaths[controller] = name
		}
	}
	return &execGroup{group, name, l, paths, subPaths}
}

// remove removes the cgroup of an exec that has ended. An occupied cgroup is removed with the container.
func (g *execGroup) remove() {
	const emptyTimeout = time.Second // the kernel takes a while to notice that a cgroup is empty
	err := process.Undo(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), emptyTimeout)
		defer cancel()
		return g.Remove(ctx)
	})
	if err != nil {
		log.L.WithError(err).Warn("cgroup of an exec")
	}
}

// discard kills all processes of an exec that failed, and removes the cgroup: the program may have run already.
func (g *execGroup) discard() error {
	defer g.remove()
	return g.killAll()
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

// limitedExec is the first process of an exec with limits. It implements [process.Handle] and [process.ExecCgroup].
type limitedExec struct {
	process.Handle
	group   *execGroup
	account cgroup.Account // set by Wait
}

// Signal sends SIGKILL to the whole cgroup, and other signals to the first process.
func (e *limitedExec) Signal(sig syscall.Signal) error {
	if err := e.Handle.Signal(sig); err != nil || sig != unix.SIGKILL {
		return err
	}
	const killTimeout = 50 * time.Millisecond // Wait continues the kill
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := e.group.Kill(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("kill the processes of the exec: %w", err)
	}
	return nil
}

// Wait waits for the first process, and then kills the others that are left and waits until they have exited.
func (e *limitedExec) Wait() process.Exit {
	exit := e.Handle.Wait()
	if !e.group.IsEmpty() {
		if err := e.group.killAll(); err != nil {
			log.L.WithError(err).Error("kill the processes of an exec")
		}
	}
	// What the cgroup does not tell is the first process's: the kernel may not count memory, and systemd may have removed
	// the cgroup with the scope that it is in.
	all, err := e.group.Account()
	if err != nil && !errdefs.IsNotFound(err) {
		log.L.WithError(err).Warn("usage of an exec")
	}
	if errdefs.IsNotFound(err) {
		all = exit.Used
		all.Memory = 0
	}
	if all.Memory == 0 {
		all.Memory = exit.Used.Memory
	}
	e.account = all
	return exit
}

func (e *limitedExec) Cgroup() *cgroup.Cgroup  { return e.group.Cgroup }
func (e *limitedExec) Account() cgroup.Account { return e.account }
func (e *limitedExec) Release()                { e.group.remove() }
