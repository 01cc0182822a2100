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
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Bounds on the end of an exec's processes. One that sleeps uninterruptibly outlasts any.
const (
	// killTimeout is what a Signal waits for all to be dead; after that the waiter goes on with it.
	killTimeout = 50 * time.Millisecond
	// treeTimeout is what the exit of an exec that was killed waits for the death of the others.
	treeTimeout = 10 * time.Second
	// emptyTimeout is what the kernel may need to notice that a cgroup got empty.
	emptyTimeout = time.Second
)

// execCgroups are the cgroups of the execs of a container.
type execCgroups struct {
	mu       sync.Mutex // held over the removal of cgroups, which is done by those who end, and waits for nothing
	last     int        // number in the name of the last one
	occupied []*cgroup.Cgroup
}

// execCgroup is the cgroup of one exec.
type execCgroup struct {
	*cgroup.Cgroup
	paths map[string]string // of a process in it, in all hierarchies
	below map[string]string // its path below the container's, as libcontainer wants it
}

// newExecCgroup makes a cgroup for an exec. The container may have made some that are called alike.
func (c *container) newExecCgroup() (*execCgroup, error) {
	c.execCgroups.mu.Lock()
	defer c.execCgroups.mu.Unlock()
	for {
		c.execCgroups.last++
		name := fmt.Sprintf("exec-%d", c.execCgroups.last)
		group, err := c.cgroup.MakeChild(name)
		switch {
		case errdefs.IsAlreadyExists(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("cgroup of the exec: %w", err)
		}
		paths, below := c.cgroup.ChildPaths(group, name), map[string]string{}
		for controller, dir := range paths {
			// "" means all hierarchies to libcontainer, so that of v2 is left out where there are others.
			if dir != c.cgroup.Path(controller) && (controller != "" || group.Unified()) {
				below[controller] = name
			}
		}
		return &execCgroup{group, paths, below}, nil
	}
}

// execIn starts lp in n. When it fails nothing is left of either: a program whose terminal did not come, say, ran already, and
// may have started others.
func (c *container) execIn(ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, n *execCgroup) (process.Handle, error) {
	h, err := c.startExec(ctx, lp, s, n)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
		defer cancel()
		err = errors.Join(err, n.Kill(ctx, unix.SIGKILL))
		c.leave(n.Cgroup, true)
		return nil, err
	}
	return &cgroupHandle{handle: h, container: c, group: n}, nil
}

// leave removes a cgroup whose exec has ended, and those of earlier ones whose last process has ended since. One that is
// occupied is removed with the container at the latest.
//
// One that has no process any more, since all were killed, has emptyTimeout to get empty.
func (c *container) leave(group *cgroup.Cgroup, killed bool) {
	if killed {
		ctx, cancel := context.WithTimeout(context.Background(), emptyTimeout)
		defer cancel()
		_ = group.Remove(ctx) // tried again below
	}
	c.execCgroups.mu.Lock()
	defer c.execCgroups.mu.Unlock()
	once, cancel := context.WithCancel(context.Background())
	cancel()
	c.execCgroups.occupied = slices.DeleteFunc(append(c.execCgroups.occupied, group), func(g *cgroup.Cgroup) bool { return g.Remove(once) == nil })
}

// cgroupHandle is the leader of an exec in a cgroup of its own. It implements process.Grouped.
type cgroupHandle struct {
	*handle
	container *container
	group     *execCgroup
	killed    atomic.Bool // by Signal, or by somebody else once Wait saw it

	mu    sync.Mutex
	final *process.Usage // after Wait
}

// Signal ends the whole cgroup with SIGKILL. Other signals are for the leader.
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

// Wait waits for the leader, and if it was killed for the end of the others.
func (g *cgroupHandle) Wait() process.Exit {
	exit := g.handle.Wait()
	if g.handle.sigkilled { // from within the container or from the host, or when memory ran out
		g.killed.Store(true)
	}
	if g.killed.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
		defer cancel()
		if err := g.group.Kill(ctx, unix.SIGKILL); err != nil {
			g.log().WithError(err).Error("kill the processes of an exec")
		}
	}
	u := g.read()
	if !u.CgroupTotal {
		u.Memory = g.maxRSS
	}
	g.mu.Lock()
	g.final = &u
	g.mu.Unlock()
	return exit
}

// Usage implements process.Grouped.
func (g *cgroupHandle) Usage() process.Usage {
	g.mu.Lock()
	final := g.final
	g.mu.Unlock()
	if final != nil {
		return *final
	}
	return g.read()
}

func (g *cgroupHandle) read() process.Usage {
	u, err := g.group.Usage()
	if err != nil && !errdefs.IsNotFound(err) {
		g.log().WithError(err).Warn("usage of an exec")
	}
	return process.Usage{CPU: u.CPU, Memory: u.Memory, CgroupTotal: u.Memory > 0}
}

// Release implements process.Grouped.
func (g *cgroupHandle) Release() { g.container.leave(g.group.Cgroup, g.killed.Load()) }

func (g *cgroupHandle) log() *log.Entry {
	return log.L.WithField("container", g.container.config.ID).WithField("cgroup", g.group.String())
}
