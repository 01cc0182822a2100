// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"syscall"

	"sandbox.internal/shim/pkg/event"
)

// DeleteExec removes an exec that has exited or was never started.
func (c *Container) DeleteExec(ctx context.Context, p *Process) (Status, error) {
	status, err := p.delete(ctx, func() error { return nil })
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
	status, err := c.init.delete(ctx, func() error {
		if err := c.drainExecs(ctx); err != nil {
			return err
		}
		if err := c.runtime.Destroy(); err != nil {
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
	unstarted := c.init.Status().State == Created
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

// drainExecs waits for the output of execs that nobody deleted.
func (c *Container) drainExecs(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.execs {
		if p.Status().State != Stopped {
			continue
		}
		select {
		case <-p.drained:
		case <-ctx.Done():
			return fmt.Errorf("wait for the output of exec %q to be read: %w", p.execID, ctx.Err())
		}
	}
	return nil
}

// delete moves p to Deleted after its output is handed on and remove, which
// must bear being called again, has succeeded.
func (p *Process) delete(ctx context.Context, remove func() error) (Status, error) {
	if err := p.take(ctx, OpDelete); err != nil {
		return Status{}, err
	}
	defer p.yield()
	if err := p.check(OpDelete); err != nil {
		return Status{}, err
	}
	status := p.Status()
	if status.State == Stopped {
		select {
		case <-p.drained:
		case <-ctx.Done():
			return Status{}, p.wrap(fmt.Errorf("delete: wait for the output to be read: %w", ctx.Err()))
		}
	}
	if err := remove(); err != nil {
		return Status{}, p.wrap(fmt.Errorf("delete: %w", err))
	}
	p.commit(OpDelete)
	return status, nil
}
