// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/stdio"
)

var (
	errInitExited  = fmt.Errorf("the container's init has exited: %w", errdefs.ErrFailedPrecondition)
	errInitKilled  = fmt.Errorf("the container's init was killed: %w", errdefs.ErrFailedPrecondition)
	errEndedByKill = fmt.Errorf("it was killed before its program ran: %w", errdefs.ErrAborted)
)

// Start runs the program of init, or the exec. If ctx ends, the Start of an exec and a restore fail, and nothing runs.
// The Start of an init that Create made cannot be undone, and ignores ctx once it has begun: it returns when the
// program runs, or when a kill has ended init.
func (p *Process) Start(ctx context.Context) error {
	if err := p.lockOp(ctx, OpStart); err != nil {
		return err
	}
	defer p.unlockOp()
	if p.execID == "" { // with the end of this use the first time without any begins
		defer func() { p.container.use(UseStart)() }() // a restored container cannot be used before
	}
	if p.execID == "" && !p.container.Restored() {
		return p.startInit(ctx)
	}
	if err := p.tryCommit(OpStart); err != nil {
		return err
	}
	p.unuse = func() {}
	if p.execID != "" {
		p.unuse = p.container.use(UseExec)
	}
	defer p.startEnded()
	ctx, cancel := withEnd(ctx, p.killed)
	defer cancel()
	start := p.startExec
	if p.execID == "" {
		start = p.restore
	}
	if err := start(ctx); err != nil {
		p.unuse()
		return p.wrap(err)
	}
	p.handle.OnEnd(p.await)
	if p.container.starts.closed.Err() != nil {
		p.container.killRemaining() // p started after finishExecs had killed the others
	}
	return nil
}

// startInit starts an init that Create made.
func (p *Process) startInit(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		err = p.container.runtime.Start()
	}
	if err != nil {
		return p.wrap(fmt.Errorf("start: %w", err))
	}
	p.commit(OpStart)
	p.initStarted()
	return nil
}

// initStarted publishes that init runs.
func (p *Process) initStarted() {
	c := p.container
	c.events.Put(event.TaskStart{ContainerID: c.ID(), Pid: p.Pid()})
	c.publishOOMs()
}

// restore restores init from its checkpoint.
func (p *Process) restore(ctx context.Context) error {
	c := p.container
	if err := c.config.MayRestore(); err != nil {
		return err
	}
	err := p.startWithStreams(ctx, func(s *stdio.Streams) (Handle, ExecCgroup, error) {
		init, err := c.runtime.Restore(ctx, s)
		if err != nil {
			return nil, nil, fmt.Errorf("restore from %q: %w", c.config.Checkpoint, err)
		}
		// An OOM kill before this is not published: the cgroup does not exist before its processes run.
		return init, nil, c.initCreated(ctx, init)
	})
	if err == nil {
		p.initStarted()
	}
	return err
}

// startExec runs an exec.
func (p *Process) startExec(ctx context.Context) error {
	c := p.container
	if err := c.starts.enter(ctx); err != nil {
		return fmt.Errorf("start: the container is being frozen: %w", err)
	}
	defer c.starts.leave()
	if err := c.init.may(OpExec); err != nil {
		return err
	}
	if err := c.exits.enter(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	runs := false
	defer func() {
		if !runs { // after a panic too
			c.exits.leave()
		}
	}()
	requested := time.Now()
	err := p.startWithStreams(ctx, func(s *stdio.Streams) (Handle, ExecCgroup, error) {
		return c.runtime.Exec(ctx, p.spec, p.limits, s)
	})
	if errors.Is(err, unix.ESRCH) { // it could not join the namespaces of init, which is gone
		err = fmt.Errorf("%w: %w", err, errInitExited)
	}
	if err != nil {
		return err
	}
	runs = true
	c.execsStarted.Add(1)
	c.events.Put(event.TaskExecStarted{ContainerID: c.ID(), ExecID: p.execID, Pid: p.Pid()})
	p.startLimits(requested, false)
	return nil
}

// startWithStreams opens p's streams and calls start with them, which starts p's process. After a failure or a panic
// there is still no process, and p cannot be started again.
func (p *Process) startWithStreams(ctx context.Context, start func(*stdio.Streams) (Handle, ExecCgroup, error)) error {
	started := false
	defer func() {
		if !started {
			p.commit(OpExit)
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

// runs commits that p runs from now on, and applies the operations on its streams that were asked for before.
func (p *Process) runs(h Handle, group ExecCgroup, s *stdio.Streams) {
	p.ioLock.Lock()
	defer p.ioLock.Unlock()
	p.mu.Lock()
	_ = p.commitLocked(OpRun) // it is starting
	p.handle, p.group, p.streams = h, group, s
	p.mu.Unlock()
	if err := p.asked.apply(s); err != nil {
		p.logger().WithError(err).Warn("asked for before the start")
	}
}

// startEnded settles a Start that was refused before it asked for a process: p can be started again, unless it was
// killed meanwhile.
func (p *Process) startEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state != starting:
	case p.wasKilled():
		_ = p.commitLocked(OpExit) // allowed
	default:
		_ = p.commitLocked(OpRefuse) // allowed
	}
}
