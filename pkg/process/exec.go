// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/stdio"
)

// startExec runs p, which is one of c's execs. The caller holds p's opLock.
func (c *Container) startExec(ctx context.Context, p *Process) error {
	if err := c.starts.enter(ctx); err != nil {
		return p.wrap(fmt.Errorf("start: the container is being frozen: %w", err))
	}
	defer c.starts.leave()
	if err := c.init.check(OpExec); err != nil {
		return err
	}
	if err := c.exits.enter(ctx); err != nil {
		return p.wrap(fmt.Errorf("start: %w", err))
	}
	runs := false
	defer func() {
		if !runs { // after a panic too
			c.exits.leave()
		}
	}()
	requested := time.Now()
	err := p.startWithStreams(ctx, func(s *stdio.Streams) (Handle, ExecCgroup, error) {
		return c.runtime.Exec(ctx, p.spec, p.limits(), s)
	})
	if err != nil {
		if errors.Is(err, unix.ESRCH) { // it could not join the namespaces of init, which is gone
			err = fmt.Errorf("%w: %w", err, errInitExited)
		}
		return p.wrap(err)
	}
	runs = true
	c.execsStarted.Add(1)
	c.events.Put(event.TaskExecStarted{ContainerID: c.ID(), ExecID: p.execID, Pid: p.Pid()})
	p.startLimits(requested)
	p.startWaiter()
	if c.starts.closed.Err() != nil {
		c.killRemaining() // p started after finishExecs had killed the others
	}
	return nil
}

// startWithStreams opens p's streams and calls start with them, which starts p's process. After a failure or a panic
// there is still no process: p cannot be started again, no exit is published, and those who wait for one are released.
func (p *Process) startWithStreams(
	ctx context.Context, start func(*stdio.Streams) (Handle, ExecCgroup, error),
) error {
	started := false
	defer func() {
		if !started {
			p.neverRan(OpExit)
		}
	}()
	opening, cancel := withEnd(ctx, p.container.starts.closed)
	defer cancel()
	streams, err := stdio.Open(opening, p.io, p.container.config.IOOwner)
	if err != nil {
		return err
	}
	handle, group, err := start(streams)
	if err != nil {
		_ = streams.Close() // their output does not matter any more
		return err
	}
	p.runs(handle, group, streams)
	p.OpenStdin()
	started = true
	if p.wasKilled() { // just before there was a handle
		_ = handle.Signal(syscall.SIGKILL) // it may be dead already
	}
	return nil
}

// runs commits that p runs from now on, and applies the operations on its streams that were asked for before; those
// that are asked for meanwhile come after them.
func (p *Process) runs(h Handle, group ExecCgroup, s *stdio.Streams) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commitLocked(OpRun)
	p.handle, p.group = h, group
	for len(p.asked) > 0 {
		asked := p.asked
		p.asked = map[Op]func(*stdio.Streams) error{}
		p.mu.Unlock()
		for op, act := range asked {
			if err := act(s); err != nil {
				p.logger().WithError(err).Warnf("%v, asked for before the start", op)
			}
		}
		p.mu.Lock()
	}
	p.streams = s
}

// finishExec logs what an exec with limits used, and releases its cgroup. The waiter calls it once, after the exit was
// published.
func (p *Process) finishExec(exit Exit) {
	if p.group == nil {
		return
	}
	u := p.group.Usage()
	memory := "memory of the largest process"
	if u.CgroupTotal {
		memory = "memory"
	}
	p.logger().WithField("status", exit.Status).WithField("cpu", u.CPU).WithField(memory, u.Memory).Info("exec ended")
	p.group.Release()
}

// execCgroup returns the cgroup of an exec with limits that was started, or nil.
func (p *Process) execCgroup() ExecCgroup {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group
}

// ExecUsage maps the id of each exec that has its own cgroup, was started and not deleted, to what it has used.
func (c *Container) ExecUsage() map[string]Usage {
	used := map[string]Usage{}
	for _, p := range c.processes() {
		if group := p.execCgroup(); group != nil {
			used[p.execID] = group.Usage()
		}
	}
	return used
}
