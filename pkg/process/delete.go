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

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/event"
)

// DeleteExec removes an exec that has exited or was never started. It ends a Start under way.
func (c *Container) DeleteExec(ctx context.Context, p *Process) (Status, error) {
	if err := p.killUnstarted(ctx); err != nil {
		return Status{}, err
	}
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

// removeExec completes the deletion of an exec, whose opLock the caller holds.
func (c *Container) removeExec(p *Process) {
	p.commitDelete()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.execs[p.execID] == p {
		delete(c.execs, p.execID)
	}
}

// Delete removes a container whose init has exited or was never started; one that was not started is killed first, and
// a restore under way is ended. A failed Delete can be retried.
func (c *Container) Delete(ctx context.Context) (Status, error) {
	if err := c.init.killUnstarted(ctx); err != nil {
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
	c.init.commitDelete()
	c.deleteUnstartedExecs()
	if c.config.Deleted != nil {
		c.config.Deleted()
	}
	c.events.Put(event.TaskDelete{
		ContainerID: c.ID(), ID: c.ID(), Pid: status.Pid, Status: status.Exit.Status, At: status.Exit.At,
	})
	c.deliver(ctx) // with opLock held: another Delete, which finds nothing, is not answered before this one
	return status, nil
}

// deleteUnstartedExecs deletes the execs of a deleted container that were never started.
func (c *Container) deleteUnstartedExecs() {
	c.mu.Lock()
	c.deleted = true
	c.mu.Unlock()
	for _, p := range c.processes() {
		if p != c.init {
			p.deleteUnstarted()
		}
	}
}

// deleteUnstarted deletes an exec if it was never started and its container was deleted. A holder of its opLock calls
// this after releasing it.
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

// commitDelete commits that p is deleted. The caller holds opLock and has checked the operation.
func (p *Process) commitDelete() {
	if p.Status().State == Created { // an exec, or an init to be restored
		p.neverRan(OpDelete)
	} else {
		p.commit(OpDelete)
	}
}

// deliverTimeout bounds how long Delete waits for containerd to take the events of the container.
const deliverTimeout = 500 * time.Millisecond

// deliver waits until containerd has all events published so far, or until the time-out. Once Delete is answered,
// containerd takes the events of the container for delivered, and publishes none itself if the shim then dies
// (core/runtime/v2/shim.go, shimTask.delete). Events of a later container with the same id come from another shim, and
// must not come first.
func (c *Container) deliver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	if err := c.events.Flush(ctx); err != nil {
		logger(c.ID()).WithError(err).Info("delete is answered before its event is delivered")
	}
}

// killUnstarted kills a process whose program does not run yet, or whose Start is under way, and returns once its exit
// is published or its Start has failed.
func (p *Process) killUnstarted(ctx context.Context) error {
	p.mu.Lock()
	unstarted := p.state == starting || p.state == Created && p.handle != nil
	p.mu.Unlock()
	if !unstarted {
		return nil
	}
	switch err := p.Kill(syscall.SIGKILL); {
	case errdefs.IsNotFound(err), errdefs.IsFailedPrecondition(err): // it has just exited, or its Start was refused
	case err != nil:
		return err
	}
	_, err := p.Wait(ctx)
	return err
}

// processes returns init and the execs that have not been deleted.
func (c *Container) processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(slices.Collect(maps.Values(c.execs)), c.init)
}

const (
	// outputTimeout bounds how long Delete waits for readers of the output. A logging binary that does not exit gets
	// three seconds more (stdio.Streams.Close). CRI allows 10 s for the whole Delete (internal/cri/server, its handling
	// of exits).
	outputTimeout = 4 * time.Second
	// leftoverTimeout is how long other processes that hold the output of one that has exited, such as children that
	// end with it, may write their last. It counts from the exit, so that a client that has already waited does not
	// wait again. After Delete they have nowhere to write to.
	leftoverTimeout = 2 * time.Second
	// readerPoll is how often Delete checks whether there are still readers. A client that calls Delete has stopped
	// reading what it has closed, so nobody needs the rest of the time. The first check comes late enough for a
	// returning reader, such as containerd after a restart, to open what it reads.
	readerPoll = 100 * time.Millisecond
	// markTimeout bounds how long Delete waits to learn how much the outputs hold.
	markTimeout = time.Second
)

// awaitDrained waits until the output of each process that has exited is read, has no reader, or its readers and
// writers have used up their time. The readers of all processes share one time-out.
func awaitDrained(ctx context.Context, processes []*Process) error {
	exited := slices.DeleteFunc(processes, func(p *Process) bool {
		return p.Status().State != Stopped || p.streams == nil // nil: never started, or the start failed
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
	var marks sync.WaitGroup // concurrently: one that uses all of the time must not take it from the others
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
