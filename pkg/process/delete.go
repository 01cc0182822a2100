// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/event"
)

// DeleteExec removes an exec that has exited or was never started.
func (c *Container) DeleteExec(ctx context.Context, p *Process) (Status, error) {
	if err := p.lockOp(ctx, OpDelete); err != nil {
		return Status{}, err
	}
	defer p.unlockOp()
	status := p.Status()
	if err := awaitDrained(ctx, []*Process{p}); err != nil {
		return Status{}, err
	}
	c.removeExec(p)
	return status, nil
}

// removeExec is the end of the deletion of an exec. The caller holds its opLock.
func (c *Container) removeExec(p *Process) {
	neverRan := p.Status().State == Created
	p.commit(OpDelete)
	if neverRan {
		p.releaseWaiters()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.execs[p.execID] == p {
		delete(c.execs, p.execID)
	}
}

// Delete removes a container whose init has exited, or was never started: then init is killed first. A Delete that
// failed can be tried again.
func (c *Container) Delete(ctx context.Context) (Status, error) {
	if err := c.killUnstarted(ctx); err != nil {
		return Status{}, err
	}
	if err := c.init.lockOp(ctx, OpDelete); err != nil {
		return Status{}, err
	}
	defer c.init.unlockOp()
	status := c.init.Status()
	if err := awaitDrained(ctx, c.processes()); err != nil {
		return Status{}, err
	}
	c.beforeDestroy()
	err := c.runtime.Destroy()
	if err == nil {
		err = c.removeHooks(false)
	}
	if err != nil {
		return Status{}, c.init.wrap(fmt.Errorf("delete: %w", err))
	}
	c.init.commit(OpDelete)
	if status.State == Created { // it was to be restored
		c.init.releaseWaiters()
	}
	c.deleteUnstartedExecs()
	for _, h := range c.config.Hooks {
		h.Deleted()
	}
	c.events.Put(event.TaskDelete{
		ContainerID: c.ID(), ID: c.ID(), Pid: status.Pid, Status: status.Exit.Status, At: status.Exit.At,
	})
	c.deliver(ctx) // with opLock: another Delete, which finds nothing, is not answered before this one
	return status, nil
}

// deleteUnstartedExecs deletes the execs of a container that was deleted which were never started, and now cannot be.
func (c *Container) deleteUnstartedExecs() {
	for _, p := range c.processes() {
		if p != c.init {
			p.deleteUnstarted()
		}
	}
}

// deleteUnstarted deletes an exec if it was never started and its container was deleted. Whoever has its opLock calls
// this afterwards.
func (p *Process) deleteUnstarted() {
	if p.container.init.Status().State != Deleted {
		return
	}
	select {
	case p.opLock <- struct{}{}:
		defer p.unlockOp()
	default:
		return
	}
	if p.Status().State == Created {
		p.container.removeExec(p)
	}
}

// releaseWaiters answers those who wait for the exit of p, which was deleted and never lived, as after a start that
// failed. The caller holds opLock.
func (p *Process) releaseWaiters() {
	p.mu.Lock()
	p.exit = Exit{Status: unknownStatus}
	p.mu.Unlock()
	close(p.exited)
}

// deliverTimeout bounds how long Delete waits for containerd to take the events of the container.
const deliverTimeout = 500 * time.Millisecond

// deliver returns when containerd has what was told so far, or its time is over. containerd takes the events of a
// container whose Delete was answered for delivered, and publishes none itself if the shim dies then
// (core/runtime/v2/shim.go, shimTask.delete). Those of a later container with the same id come from another shim, and
// must not come before.
func (c *Container) deliver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	if err := c.events.Flush(ctx); err != nil {
		log.L.WithError(err).WithField("container", c.ID()).Info("delete is answered before its event is delivered")
	}
}

// killUnstarted kills an init that waits to be started, and returns once its exit is told.
func (c *Container) killUnstarted(ctx context.Context) error {
	if err := c.init.lockOp(ctx, OpDelete); err != nil {
		return err
	}
	status := c.init.Status()
	unstarted := status.State == Created && status.Pid != 0 // 0: nothing was restored yet
	if unstarted {
		_ = c.init.handle.Signal(syscall.SIGKILL) // it may be dead already
	}
	c.init.unlockOp()
	if !unstarted {
		return nil
	}
	_, err := c.init.Wait(ctx)
	return err
}

// processes are init and the execs that nobody deleted.
func (c *Container) processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(slices.Collect(maps.Values(c.execs)), c.init)
}

const (
	// outputTimeout bounds how long Delete waits for readers of the output. A logging binary that does not end has
	// some seconds more (stdio.Streams.Close). CRI gives a Delete 10 s in all (internal/cri/server, its handling of exits).
	outputTimeout = 4 * time.Second
	// leftoverTimeout is for other processes that hold the output of one that has exited, such as children that end
	// with it, to write their last: from the exit on, so that a client that waited for it does not wait again. After
	// Delete they have nowhere to write to.
	leftoverTimeout = 2 * time.Second
	// readerPoll is how often Delete looks whether there are still readers. Whoever asks for Delete has stopped reading
	// what it has closed, so nobody needs the rest of the time. The first look leaves a reader that comes back, as
	// containerd does after a restart, the time to open what it reads.
	readerPoll = 100 * time.Millisecond
	// markTimeout bounds how long Delete waits until it is known how much is in the outputs.
	markTimeout = time.Second
)

// awaitDrained waits until the output of those processes that have exited is read, has no reader, or its readers and
// writers had their time. The time of readers is one for all.
func awaitDrained(ctx context.Context, processes []*Process) error {
	exited := slices.DeleteFunc(processes, func(p *Process) bool {
		return p.Status().State != Stopped || p.streams == nil // nil: it was never started, or that failed
	})
	overdue := time.AfterFunc(outputTimeout, func() {
		for _, p := range exited {
			p.stopDraining()
		}
	})
	defer overdue.Stop()
	poll := time.NewTicker(readerPoll)
	defer poll.Stop()
	mark, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	var marks sync.WaitGroup // at the same time: one that takes all of the time must not take it off the others
	for _, p := range exited {
		marks.Go(func() { p.streams.Mark(mark) })
	}
	marks.Wait()
	for i := 0; i < len(exited); {
		select {
		case <-exited[i].drained:
			i++
		case <-poll.C:
			for _, p := range exited[i:] {
				if p.streams.DrainMayStop(time.Since(p.Status().Exit.At) > leftoverTimeout) {
					p.stopDraining()
				}
			}
		case <-ctx.Done():
			return exited[i].wrap(fmt.Errorf("wait for the output to be read: %w", ctx.Err()))
		}
	}
	return nil
}
