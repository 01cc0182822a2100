// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/execgroup"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Time limits for the end of an exec's processes. One that sleeps uninterruptibly may outlast them.
const (
	killTimeout = 50 * time.Millisecond // for Signal, until all have exited; Wait continues the kill
	treeTimeout = 10 * time.Second      // for Wait, until all have exited after the leader was killed
)

// execIn starts lp in group. If it fails, nothing is left of either: a program whose terminal did not arrive, for
// example, has already run and may have started others.
func (c *container) execIn(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, group *execgroup.Group,
) (*cgroupHandle, error) {
	h, err := c.startExec(ctx, lp, s, group)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
		defer cancel()
		err = errors.Join(err, group.Kill(ctx, unix.SIGKILL))
		c.execGroups.Remove(group)
		return nil, err
	}
	return &cgroupHandle{handle: h, container: c, group: group}, nil
}

// cgroupHandle is the leader of an exec with limits. It implements process.Handle and process.ExecCgroup.
type cgroupHandle struct {
	*handle
	container *container
	group     *execgroup.Group
	final     atomic.Pointer[process.Usage] // set by Wait
	account   cgroup.Account                // set by Wait
}

// Signal sends SIGKILL to the whole cgroup, and other signals to the leader.
func (g *cgroupHandle) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		return g.handle.Signal(sig)
	}
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

// Wait waits for the leader. A run ends as a whole: Wait kills the others that are left, and waits until they have
// exited.
func (g *cgroupHandle) Wait() process.Exit {
	exit := g.handle.Wait()
	if !g.group.IsEmpty() {
		ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
		defer cancel()
		if err := g.group.Kill(ctx, unix.SIGKILL); err != nil {
			g.log().WithError(err).Error("kill the processes of an exec")
		}
	}
	u := g.readFinal(exit.Used)
	g.final.Store(&u)
	return exit
}

// Cgroup implements process.ExecCgroup.
func (g *cgroupHandle) Cgroup() *cgroup.Cgroup { return g.group.Cgroup }

// Usage implements process.ExecCgroup.
func (g *cgroupHandle) Usage() process.Usage {
	if final := g.final.Load(); final != nil {
		return *final
	}
	return g.usage(g.group.Usage())
}

func (g *cgroupHandle) usage(u cgroup.Usage, err error) process.Usage {
	if err != nil && !errdefs.IsNotFound(err) {
		g.log().WithError(err).Warn("usage of an exec")
	}
	return process.Usage{CPU: u.CPU, Memory: u.Memory, CgroupTotal: u.Memory > 0}
}

// readFinal reads the usage of an exec that has ended. What its cgroup does not tell is leader's: the kernel may not
// count memory, and systemd may have removed the cgroup with the scope that it is in.
func (g *cgroupHandle) readFinal(leader cgroup.Account) process.Usage {
	all, err := g.group.Account()
	u := g.usage(all.Usage, err)
	if errdefs.IsNotFound(err) {
		all, u.CPU = leader, leader.CPU
	}
	if !u.CgroupTotal {
		all.Memory, u.Memory = leader.Memory, leader.Memory
	}
	g.account = all
	return u
}

// Account implements process.ExecCgroup.
func (g *cgroupHandle) Account() cgroup.Account { return g.account }

// Release implements process.ExecCgroup.
func (g *cgroupHandle) Release() { g.container.execGroups.Remove(g.group) }

func (g *cgroupHandle) log() *log.Entry {
	return log.L.WithField("container", g.container.config.ID).WithField("cgroup", g.group.String())
}
