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

// startExec runs p, which is one of c's execs. The caller holds p's opLock.
func (c *Container) startExec(ctx context.Context, p *Process) error {
	if err := c.acquireFreezing(ctx, 1); err != nil {
		return p.wrap(fmt.Errorf("start: the container is being frozen: %w", err))
	}
	defer c.freezing.Release(1)
	if err := c.init.check(OpExec); err != nil {
		return err
	}
	if err := c.addLiveExec(p); err != nil {
		return err
	}
	lives := false
	defer func() {
		if !lives { // after a panic too
			c.live.Release(1)
		}
	}()
	asked := time.Now()
	err := p.startWithStreams(ctx, func(s *stdio.Streams) (Handle, error) {
		return c.runtime.Exec(ctx, p.spec, p.limits(), s)
	})
	if err != nil {
		if errors.Is(err, unix.ESRCH) { // it was to join namespaces of a process that is gone
			err = fmt.Errorf("%w: %w", err, errInitExited)
		}
		return p.wrap(err)
	}
	lives = true
	p.commit(OpStart)
	c.execsStarted.Add(1)
	c.events.Put(event.TaskExecStarted{ContainerID: c.ID(), ExecID: p.execID, Pid: p.Pid()})
	p.startLimits(asked)
	p.startWaiter()
	if c.initLives.Err() != nil {
		c.killRemaining() // p started after finishExecs had killed the others
	}
	return nil
}

// startWithStreams opens p's streams and calls start with them, which starts p's process. After a failure or a panic
// there is still no process: p cannot be started again, no exit is published, and those who wait for one are released.
func (p *Process) startWithStreams(ctx context.Context, start func(*stdio.Streams) (Handle, error)) error {
	started := false
	defer func() {
		if !started {
			p.failStart()
		}
	}()
	opening, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	detach := context.AfterFunc(p.container.initLives, func() { cancel(errInitExited) })
	streams, err := stdio.Open(opening, p.io, p.container.config.IOOwner)
	detach()
	if err != nil {
		return err
	}
	handle, err := start(streams)
	if err != nil {
		_ = streams.Close() // nothing that was written matters any more
		return err
	}
	p.setHandle(handle, streams)
	p.OpenStdin()
	started = true
	if p.startWasKilled() { // just before there was a handle
		_ = handle.Signal(syscall.SIGKILL) // it may be dead already
	}
	return nil
}

// setHandle sets the handle and the streams of p, which runs from now on, and applies what was asked of the streams
// before; what is asked meanwhile comes after that.
func (p *Process) setHandle(h Handle, s *stdio.Streams) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handle = h
	for len(p.asked) > 0 {
		asked := p.asked
		p.asked = map[Op]func(*stdio.Streams) error{}
		p.mu.Unlock()
		for op, act := range asked {
			if err := act(s); err != nil {
				logger(p.container.ID()).WithError(err).WithField("exec", p.execID).Warnf("%v, asked for before the start", op)
			}
		}
		p.mu.Lock()
	}
	p.streams = s
}

var (
	errInitExited = fmt.Errorf("the container's init has exited: %w", errdefs.ErrFailedPrecondition)
	errInitKilled = fmt.Errorf("the container's init was killed: %w", errdefs.ErrFailedPrecondition)
)

// addLiveExec makes init's exit wait for p's, or fails if init has exited (P3, P4), or was killed: it may take a while
// to die.
func (c *Container) addLiveExec(p *Process) error {
	if c.init.dying.Load() {
		return p.wrap(fmt.Errorf("start: %w", errInitKilled))
	}
	if c.live.TryAcquire(1) { // fails if init's exit waits, or has waited, for all
		if c.initLives.Err() == nil {
			return nil
		}
		c.live.Release(1)
	}
	return p.wrap(fmt.Errorf("start: %w", errInitExited))
}

// unknownStatus is the exit status of a process that never ran, as in containerd's client (client.UnknownExitStatus).
const unknownStatus = 255

// failStart ends a process whose start failed.
func (p *Process) failStart() {
	p.commitExit(Exit{Status: unknownStatus})
	close(p.exited)
}

// finishExec logs what an exec with limits used, and releases its cgroup. The waiter calls it once, after the exit was
// published.
func (p *Process) finishExec(exit Exit) {
	h, ok := p.handle.(CgroupHandle)
	if !ok {
		return
	}
	u := h.Usage()
	memory := "memory of the largest process"
	if u.CgroupTotal {
		memory = "memory"
	}
	logger(p.container.ID()).WithField("exec", p.execID).WithField("status", exit.Status).
		WithField("cpu", u.CPU).WithField(memory, u.Memory).Info("exec ended")
	h.Release()
}

// ExecUsage maps the id of each exec that has its own cgroup, was started and not deleted, to what it has used.
func (c *Container) ExecUsage() map[string]Usage {
	used := map[string]Usage{}
	for _, p := range c.processes() {
		p.mu.Lock()
		h, ok := p.handle.(CgroupHandle)
		p.mu.Unlock()
		if ok {
			used[p.execID] = h.Usage()
		}
	}
	return used
}
