// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/event"
)

// errEndedByKill is the error of a Start that a SIGKILL, or a Delete, has ended.
var errEndedByKill = fmt.Errorf("it was killed before its program ran: %w", errdefs.ErrAborted)

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
	ctx, end := context.WithCancelCause(ctx)
	p.mu.Lock()
	p.endStart = end
	p.mu.Unlock()
	defer p.startEnded()
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
	defer context.AfterFunc(ctx, func() { p.startAbandoned.Store(true) })()
	if err := p.container.runtime.Start(); err != nil {
		return p.wrap(err)
	}
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
	p.commit(OpStart)
	c.events.Put(event.TaskStart{ContainerID: c.ID(), Pid: p.Pid()})
	c.publishOOMs()
}

// startEnded releases what Start has set for endStart. A process that was killed before there was one has failed to
// start, whatever the Start waited for.
func (p *Process) startEnded() {
	p.mu.Lock()
	end := p.endStart
	p.endStart = nil
	unborn := p.state == Created && p.handle == nil && p.startKilled
	p.mu.Unlock()
	end(nil)
	if unborn {
		p.failStart()
	}
}

// startWasKilled reports whether Kill or Delete ends the Start under way, whatever ended its context before.
func (p *Process) startWasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startKilled
}

// killStarting ends a Start that is under way, if p has no process before it, and returns once p has exited or Start
// has failed. An init that Create made is killed if nobody waits for its Start any more.
func (p *Process) killStarting(ctx context.Context) error {
	p.mu.Lock()
	starting := p.endStart != nil || p.startAbandoned.Load()
	created := p.state == Created
	p.mu.Unlock()
	if !starting || !created {
		return nil
	}
	switch err := p.Kill(syscall.SIGKILL); {
	case errdefs.IsNotFound(err), errdefs.IsFailedPrecondition(err): // it has just exited, or its Start has failed
		return nil
	case err != nil:
		return err
	}
	_, err := p.Wait(ctx)
	return err
}
