// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"sandbox.internal/shim/pkg/event"
)

// DeleteExec removes an exec that has exited or was never started.
func (c *Container) DeleteExec(ctx context.Context, p *Process) (Status, error) {
	itself := func() []*Process { return []*Process{p} }
	status, err := p.delete(ctx, itself, func() error { return nil })
	if err != nil {
		return status, err
	}
	c.mu.Lock()
	if c.execs[p.execID] == p {
		delete(c.execs, p.execID)
	}
	c.mu.Unlock()
	return status, nil
}

// Delete removes a container whose init has exited, or was never started: then
// init is killed first. undo removes what the caller made around the container.
// A Delete that failed can be tried again.
func (c *Container) Delete(ctx context.Context, undo func() error) (Status, error) {
	if err := c.killUnstarted(ctx); err != nil {
		return Status{}, err
	}
	status, err := c.init.delete(ctx, c.processes, func() error {
		if err := c.destroy(c.runtime.Destroy); err != nil {
			return err
		}
		if err := c.removeHooks(); err != nil {
			return err
		}
		return undo()
	})
	if err != nil {
		return status, err
	}
	c.events.Put(event.TaskDelete{
		ContainerID: c.ID(), ID: c.ID(), Pid: status.Pid, Status: status.Exit.Status, At: status.Exit.At,
	})
	return status, nil
}

// killUnstarted ends an init that waits to be started, and returns once its
// exit is told.
func (c *Container) killUnstarted(ctx context.Context) error {
	if err := c.init.take(ctx, OpDelete); err != nil {
		return err
	}
	status := c.init.Status()
	unstarted := status.State == Created && status.Pid != 0 // 0: nothing was restored yet
	if unstarted {
		_ = c.init.handle.Signal(syscall.SIGKILL) // dead already is as good
	}
	c.init.yield()
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

// outputTimeout is for who reads the output, once Delete is asked for. A logging
// binary that does not end has a second more (stdio.Streams.Close). CRI gives a
// Delete 10 s in all (internal/cri/server, its handling of exit events).
const outputTimeout = 4 * time.Second

// leftoverTimeout is for other processes that hold the output of one that has
// exited, such as children that end with it, to have their last word: from the
// exit on, so that a client that has waited for it, each as long as it likes, does
// not wait again. After Delete they have nowhere to write to.
const leftoverTimeout = 2 * time.Second

// lookInterval is how often Delete looks whether the readers are still there.
// Who asks for Delete has stopped reading what it has closed, so the rest of the
// time would be waited out for nobody. The first look gives one who comes back,
// as containerd does after a restart, the time to open what it reads.
const lookInterval = 100 * time.Millisecond

// awaitDrained waits until the output of those processes that have exited is
// handed on, nobody is there to read it, or those who read or hold it had their
// time, which for readers is one for all.
func awaitDrained(ctx context.Context, processes []*Process) error {
	exited := slices.DeleteFunc(processes, func(p *Process) bool { return p.Status().State != Stopped })
	overdue := time.AfterFunc(outputTimeout, func() {
		for _, p := range exited {
			p.stopDraining()
		}
	})
	defer overdue.Stop()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for _, p := range exited {
		if p.streams != nil {
			p.streams.Mark()
		}
	}
	for i := 0; i < len(exited); {
		select {
		case <-exited[i].drained:
			i++
		case <-look.C:
			for _, p := range exited[i:] {
				if p.streams != nil && p.streams.Settled(time.Since(p.Status().Exit.At) > leftoverTimeout) {
					p.stopDraining()
				}
			}
		case <-ctx.Done():
			return exited[i].wrap(fmt.Errorf("wait for the output to be read: %w", ctx.Err()))
		}
	}
	return nil
}

// stopDraining ends the wait for who reads the output of p.
func (p *Process) stopDraining() {
	p.mu.Lock()
	cut := p.cut
	p.mu.Unlock()
	if cut != nil { // nil: it was never started, or that failed
		cut()
	}
}

// delete moves p to Deleted after the output of processes is handed on and
// remove, which must bear being called again, has succeeded.
func (p *Process) delete(ctx context.Context, processes func() []*Process, remove func() error) (Status, error) {
	if err := p.take(ctx, OpDelete); err != nil {
		return Status{}, err
	}
	defer p.yield()
	if err := p.check(OpDelete); err != nil {
		return Status{}, err
	}
	status := p.Status()
	if err := awaitDrained(ctx, processes()); err != nil {
		return Status{}, err
	}
	if err := remove(); err != nil {
		return Status{}, p.wrap(fmt.Errorf("delete: %w", err))
	}
	p.commit(OpDelete)
	return status, nil
}
