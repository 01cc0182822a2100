// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package execgroup

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
)

// Time limits for the end of an exec's processes. One that sleeps uninterruptibly may outlast them.
const (
	killTimeout = 50 * time.Millisecond // for Signal, until all have exited; Wait continues the kill
	treeTimeout = 10 * time.Second      // for Wait, until all have exited after the leader was killed
)

// Handle is the leader of an exec with limits. It implements [process.Handle] and [process.ExecCgroup].
type Handle struct {
	process.Handle
	groups  *Groups
	group   *Group
	final   atomic.Pointer[process.Usage] // set by Wait
	account cgroup.Account                // set by Wait
}

// Handle returns the handle of an exec in group whose leader is h.
func (g *Groups) Handle(h process.Handle, group *Group) *Handle {
	return &Handle{Handle: h, groups: g, group: group}
}

// Signal sends SIGKILL to the whole cgroup, and other signals to the leader.
func (g *Handle) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		return g.Handle.Signal(sig)
	}
	if err := g.Handle.Signal(sig); err != nil {
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
func (g *Handle) Wait() process.Exit {
	exit := g.Handle.Wait()
	if !g.group.IsEmpty() {
		if err := g.group.killAll(); err != nil {
			g.log().WithError(err).Error("kill the processes of an exec")
		}
	}
	u := g.readFinal(exit.Used)
	g.final.Store(&u)
	return exit
}

// Cgroup implements process.ExecCgroup.
func (g *Handle) Cgroup() *cgroup.Cgroup { return g.group.Cgroup }

// Usage implements process.ExecCgroup.
func (g *Handle) Usage() process.Usage {
	if final := g.final.Load(); final != nil {
		return *final
	}
	return g.usage(g.group.Usage())
}

func (g *Handle) usage(u cgroup.Usage, err error) process.Usage {
	if err != nil && !errdefs.IsNotFound(err) {
		g.log().WithError(err).Warn("usage of an exec")
	}
	return process.Usage{CPU: u.CPU, Memory: u.Memory, CgroupTotal: u.Memory > 0}
}

// readFinal reads the usage of an exec that has ended. What its cgroup does not tell is leader's: the kernel may not
// count memory, and systemd may have removed the cgroup with the scope that it is in.
func (g *Handle) readFinal(leader cgroup.Account) process.Usage {
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
func (g *Handle) Account() cgroup.Account { return g.account }

// Release implements process.ExecCgroup.
func (g *Handle) Release() { g.groups.Remove(g.group) }

func (g *Handle) log() *log.Entry {
	return log.L.WithField("cgroup", g.group.String())
}

// killAll kills all processes of the exec, and waits until they have exited.
func (g *Group) killAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), treeTimeout)
	defer cancel()
	return g.Kill(ctx, unix.SIGKILL)
}

// Discard kills all processes of an exec that failed, and removes the cgroup. A program whose terminal did not arrive,
// for example, has already run and may have started others.
func (g *Groups) Discard(group *Group) error {
	defer g.Remove(group)
	return group.killAll()
}
