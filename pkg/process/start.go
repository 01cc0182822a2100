// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/event"
)

var (
	errInitExited  = fmt.Errorf("the container's init has exited: %w", errdefs.ErrFailedPrecondition)
	errInitKilled  = fmt.Errorf("the container's init was killed: %w", errdefs.ErrFailedPrecondition)
	errEndedByKill = fmt.Errorf("it was killed before its program ran: %w", errdefs.ErrAborted)
)

// Start runs the program of init, or the exec. If ctx ends, the Start of an exec and a restore fail, and nothing runs.
// An init that Create made is let go first of all, which cannot be undone, so its Start ignores ctx from then on: it
// returns when the program runs, or when a kill has ended init.
func (p *Process) Start(ctx context.Context) error {
	if p.execID != "" {
		defer p.deleteUnstarted() // if it was refused while the container was deleted
	}
	if err := p.lockOp(ctx, OpStart); err != nil {
		return err
	}
	defer p.unlockOp()
	if p.execID == "" && !p.container.Restored() {
		return p.startInit(ctx)
	}
	p.commit(OpStart)
	defer p.startEnded()
	ctx, cancel := withEnd(ctx, p.killed)
	defer cancel()
	if p.execID != "" {
		return p.container.startExec(ctx, p)
	}
	return p.startRestored(ctx)
}

// startInit lets the init go that Create made. The caller holds opLock.
func (p *Process) startInit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return p.wrap(fmt.Errorf("start: %w", err))
	}
	if err := p.container.runtime.Start(); err != nil {
		return p.wrap(err)
	}
	p.commit(OpStart)
	p.initStarted()
	return nil
}

// startRestored restores init. The caller holds opLock.
func (p *Process) startRestored(ctx context.Context) error {
	if err := p.container.restore(ctx); err != nil {
		return p.wrap(err)
	}
	p.initStarted()
	p.startWaiter()
	return nil
}

// initStarted publishes that init runs.
func (p *Process) initStarted() {
	c := p.container
	c.events.Put(event.TaskStart{ContainerID: c.ID(), Pid: p.Pid()})
	c.publishOOMs()
}

// startEnded settles a Start that was refused before it asked for a process: p can be started again, unless it was
// killed meanwhile.
func (p *Process) startEnded() {
	p.mu.Lock()
	refused := p.state == starting
	if refused && !p.wasKilled() {
		p.commitLocked(OpRefuse)
		refused = false
	}
	p.mu.Unlock()
	if refused {
		p.neverRan(OpExit)
	}
}
