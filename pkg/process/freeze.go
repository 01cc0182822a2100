// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
)

// Pause freezes every process of the container. It waits for execs that are
// being started, which takes milliseconds.
func (c *Container) Pause(ctx context.Context) error {
	if err := c.init.take(ctx, OpPause); err != nil {
		return err
	}
	defer c.init.yield()
	c.freezing.Lock()
	defer c.freezing.Unlock()
	if err := c.init.check(OpPause); err != nil {
		return err
	}
	c.setPausing(true)
	err := c.runtime.Pause()
	if err == nil {
		c.init.commit(OpPause)
	}
	c.setPausing(false)
	if err != nil {
		_ = c.runtime.Resume() // half of the container may be frozen; the error below is the one that matters
		return c.init.wrap(fmt.Errorf("pause: %w", err))
	}
	c.events.Put(event.TaskPaused{ContainerID: c.ID()})
	if c.init.wasKilled() {
		return c.thaw()
	}
	return nil
}

// Resume thaws the container.
func (c *Container) Resume(ctx context.Context) error {
	if err := c.init.take(ctx, OpResume); err != nil {
		return err
	}
	defer c.init.yield()
	if err := c.init.check(OpResume); err != nil {
		return err
	}
	if err := c.thaw(); err != nil {
		return err
	}
	c.init.commit(OpResume)
	c.events.Put(event.TaskResumed{ContainerID: c.ID()})
	return nil
}

// Update changes the resources that r names.
func (c *Container) Update(ctx context.Context, r *specs.LinuxResources) error {
	if err := c.init.take(ctx, OpUpdate); err != nil {
		return err
	}
	defer c.init.yield()
	if err := c.init.check(OpUpdate); err != nil {
		return err
	}
	if err := c.runtime.Update(r); err != nil {
		return c.init.wrap(fmt.Errorf("update resources: %w", err))
	}
	return nil
}

func (c *Container) thaw() error {
	if err := c.runtime.Resume(); err != nil {
		return c.init.wrap(fmt.Errorf("thaw: %w", err))
	}
	return nil
}

func (c *Container) setPausing(v bool) {
	c.mu.Lock()
	c.pausing = v
	c.mu.Unlock()
}

// display is the state shown for a process that runs: the container's, while
// that is frozen or being frozen.
func (c *Container) display() State {
	c.init.mu.Lock()
	paused := c.init.state == Paused
	c.init.mu.Unlock()
	if paused {
		return Paused
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pausing {
		return Pausing
	}
	return Running
}

func (p *Process) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}
