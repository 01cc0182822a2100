// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/event"
)

// DeleteExec removes an exec that has exited or was never started. It ends a Start under way.
func (p *Process) DeleteExec(ctx context.Context) (Status, error) {
	if err := p.lockDelete(ctx); err != nil {
		return Status{}, err
	}
	defer p.unlockOp()
	status := p.Status()
	if err := awaitDrained(ctx, []*Process{p}); err != nil {
		return Status{}, err
	}
	if err := p.tryCommit(OpDelete); err != nil {
		return Status{}, err
	}
	c := p.container
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.execs[p.execID] == p {
		delete(c.execs, p.execID)
	}
	return status, nil
}

// Delete removes a container whose init has exited or was never started; one that was not started is killed first, and
// a restore under way is ended. A failed Delete can be retried.
func (c *Container) Delete(ctx context.Context) (Status, error) {
	defer c.use(UseSignal)()
	if err := c.init.lockDelete(ctx); err != nil {
		return Status{}, err
	}
	defer c.init.unlockOp()
	status := c.init.Status()
	if err := awaitDrained(ctx, append(c.allExecs(), c.init)); err != nil {
		return Status{}, err
	}
	c.beforeDestroy()
	err := c.runtime.Destroy()
	if err == nil {
		err = c.remove(false)
	}
	if err != nil {
		return Status{}, c.init.wrap(fmt.Errorf("delete: %w", err))
	}
	c.init.commit(OpDelete)
	for _, p := range c.allExecs() {
		p.abandon()
	}
	c.config.Record.Deleted()
	c.events.Put(event.TaskDelete{
		ContainerID: c.ID(), ID: c.ID(), Pid: status.Pid, Status: status.Exit.Status, At: status.Exit.At,
	})
	c.deliver(ctx) // with opLock held: another Delete, which finds nothing, is not answered before this one
	return status, nil
}

// abandon answers those who wait for an exec of a deleted container that was never started, or whose Start is refused.
// Nobody else would.
func (p *Process) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state { //nolint:exhaustive // in the other states its exit was published, or will be
	case Created:
		_ = p.commitLocked(OpDelete) // allowed
	case starting:
		p.kill()
	}
}

// deliver waits until containerd has all events, or until the time-out. Once Delete is answered, containerd publishes
// none itself if the shim then dies (core/runtime/v2/shim.go, shimTask.delete), and another shim may publish those of a
// later container with the same id.
func (c *Container) deliver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if err := c.events.Flush(ctx); err != nil {
		logger(c.ID()).WithError(err).Info("delete is answered before its event is delivered")
	}
}

// lockDelete locks opLock for OpDelete. It first kills a process whose program does not run yet, or whose Start is
// under way, and waits until its exit is published or its Start has failed.
func (p *Process) lockDelete(ctx context.Context) error {
	if err := p.killUnstarted(ctx); err != nil {
		return err
	}
	return p.lockOp(ctx, OpDelete)
}

func (p *Process) killUnstarted(ctx context.Context) error {
	p.mu.Lock()
	unstarted := p.state == starting || p.state == Created && p.handle != nil
	p.mu.Unlock()
	if !unstarted {
		return nil
	}
	switch err := p.Kill(syscall.SIGKILL); {
	case errdefs.IsFailedPrecondition(err): // its Start was refused
		return nil
	case err != nil && !errdefs.IsNotFound(err): // else it has just exited
		return err
	}
	_, err := p.Wait(ctx)
	return err
}

// Bounds on how long Delete waits for the output. CRI allows 10 s for the whole Delete (internal/cri/server, its
// handling of exits), of which a logging binary may take three.
const (
	outputTimeout   = 4 * time.Second        // for readers
	leftoverTimeout = 2 * time.Second        // after the exit, for other processes that hold the output
	readerPoll      = 100 * time.Millisecond // in which a returning reader, such as a new containerd, opens the output
)

// awaitDrained waits until the output of each process that has exited is read, has no reader, or its readers and
// writers have used up their time, which all processes share.
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
