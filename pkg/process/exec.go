// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/stdio"
)

// startExec runs p, which is one of c's execs. Called with p's turn held.
func (c *Container) startExec(ctx context.Context, p *Process) (err error) {
	if err := c.takeFreezing(ctx, 1); err != nil {
		return p.wrap(fmt.Errorf("start: the container is being frozen: %w", err))
	}
	defer c.freezing.Release(1)
	if err := c.init.check(OpExec); err != nil {
		return err
	}
	if err := c.countIn(p); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.countOut()
			p.fail()
		}
	}()
	err = p.run(ctx, func(s *stdio.Streams) (Handle, error) { return c.runtime.Exec(ctx, p.spec, s) })
	if err != nil {
		return err
	}
	p.commit(OpStart)
	c.events.Put(event.TaskExecStarted{ContainerID: c.ID(), ExecID: p.execID, Pid: p.handle.Pid()})
	p.limit()
	go p.await() // ends at the exec's exit; Delete joins it through drained
	if c.initLives.Err() != nil {
		c.killStrays() // p came to life after settle had killed the others
	}
	return nil
}

// run opens p's streams, has start bring p to life with them, and applies what
// was asked of them before. Called with p's turn held.
func (p *Process) run(ctx context.Context, start func(*stdio.Streams) (Handle, error)) error {
	streams, err := stdio.Open(ctx, p.io, p.container.config.IOOwner)
	if err != nil {
		return p.wrap(err)
	}
	handle, err := start(streams)
	if err != nil {
		_ = streams.Close() // nothing was written to them
		return p.wrap(err)
	}
	p.mu.Lock()
	p.handle, p.streams = handle, streams
	size, stdinClosed := p.size, p.stdinClosed
	p.mu.Unlock()
	if size != nil {
		if err := streams.Resize(size.width, size.height); err != nil {
			logger(p.container.ID()).WithError(err).WithField("exec", p.execID).Warn("set terminal size")
		}
	}
	if stdinClosed {
		_ = streams.CloseStdin() // as the caller asked before the start; nothing to add if the process closed it first
	}
	return nil
}

var errInitExited = fmt.Errorf("the container's init has exited: %w", errdefs.ErrFailedPrecondition)

// countIn makes init's exit wait for p's, unless init is dead (P3, P4).
func (c *Container) countIn(p *Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.initLives.Err() != nil {
		return p.wrap(fmt.Errorf("start: %w", errInitExited))
	}
	c.live++
	return nil
}

// countOut is called once the exit of an exec is told, or its start failed.
func (c *Container) countOut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live--
	if c.live == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// noProcess is the exit status of a process that never came to life, as of
// containerd's client for a status it does not know (client.UnknownExitStatus).
const noProcess = 255

// fail ends a process whose start failed: it cannot be started again, nobody is
// told of an exit, and those who wait for one are released.
func (p *Process) fail() {
	p.commitExit(Exit{Status: noProcess})
	close(p.exited)
	close(p.drained)
}
