// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/event"
)

// startTimeout bounds the wait of a freeze for execs that are being started. Later execs wait behind it.
const startTimeout = 10 * time.Second

// exclusively calls act for op, which freezes or thaws, with the operations of init locked and starts of execs
// excluded.
func (c *Container) exclusively(ctx context.Context, op Op, act func() error) error {
	defer c.use(UseChange)()
	if err := c.init.lockOp(ctx, op); err != nil {
		return err
	}
	defer c.init.unlockOp()
	bounded, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.starts.exclude(bounded); err != nil {
		return c.init.wrap(fmt.Errorf("%v: an exec is being started: %w", op, err))
	}
	defer c.starts.readmit()
	if err := act(); err != nil {
		return c.init.wrap(fmt.Errorf("%v: %w", op, err))
	}
	return nil
}

// Pause freezes every process of the container. It waits for execs that are being started, and gives up on one that
// hangs.
func (c *Container) Pause(ctx context.Context) error {
	return c.exclusively(ctx, OpPause, func() error {
		c.init.commit(OpPause)
		if err := c.runtime.Pause(); err != nil {
			_ = c.runtime.Resume() // half of the container may be frozen; the other error is the one that matters
			c.init.commit(OpResume)
			if c.init.wasKilled() { // a kill thaws
				return fmt.Errorf("the container is being killed: %w: %w", err, errdefs.ErrFailedPrecondition)
			}
			return err
		}
		c.init.commit(OpFreeze)
		c.unpause = c.use(UsePause)
		c.events.Put(event.TaskPaused{ContainerID: c.ID()})
		if c.init.wasKilled() {
			return c.runtime.Resume()
		}
		return nil
	})
}

// Resume thaws the container.
func (c *Container) Resume(ctx context.Context) error {
	return c.exclusively(ctx, OpResume, func() error {
		if err := c.runtime.Resume(); err != nil {
			return err
		}
		c.init.commit(OpResume)
		if c.unpause != nil {
			c.unpause()
		}
		c.events.Put(event.TaskResumed{ContainerID: c.ID()})
		return nil
	})
}

// Update changes the resources that r names.
func (c *Container) Update(ctx context.Context, r *specs.LinuxResources) error {
	defer c.use(UseChange)()
	if err := c.init.lockOp(ctx, OpUpdate); err != nil {
		return err
	}
	defer c.init.unlockOp()
	if s := c.config.CPUSet; s != nil {
		s.BeforeUpdate(r)
	}
	err := c.runtime.Update(r)
	if s := c.config.CPUSet; s != nil {
		s.AfterUpdate(err)
	}
	if err != nil {
		return c.init.wrap(fmt.Errorf("update resources: %w", err))
	}
	return nil
}

// CheckpointRequest has the options of a checkpoint: a path, and the fields of containerd.runc.v1.CheckpointOptions.
type CheckpointRequest struct {
	Path                string   // directory for the image, absolute; made if its parent exists
	WorkPath            string   // directory for the log; empty for one that is removed after success
	ParentPath          string   // image of an earlier checkpoint, relative to Path
	CgroupsMode         string   // what is kept of cgroups: soft, full, strict, ignore; empty for CRIU's default
	EmptyNamespaces     []string // kinds of namespaces that are restored empty
	Exit                bool     // end the processes instead of letting them continue
	OpenTCP             bool     // allow established TCP connections
	ExternalUnixSockets bool     // allow unix sockets whose other end is outside
	Terminal            bool     // allow a controlling terminal from outside
	FileLocks           bool     // allow file locks
}

// Checkpoint writes the state of every process of the container to disk. It waits for execs as Pause does, and keeps
// others from being started meanwhile. A TaskExit caused by r.Exit is published after the TaskCheckpointed.
func (c *Container) Checkpoint(ctx context.Context, r CheckpointRequest) error {
	return c.exclusively(ctx, OpCheckpoint, func() error {
		c.checkpointed.Store(r.Exit)
		err := c.runtime.Checkpoint(r)
		c.checkpointed.Store(r.Exit && err == nil)
		if err == nil {
			c.events.Put(event.TaskCheckpointed{ContainerID: c.ID(), Checkpoint: r.Path})
		}
		// A container that was frozen before is frozen again, and on cgroup v1 a frozen process does not die.
		if c.init.Status().State == Paused && (c.init.wasKilled() || err == nil && r.Exit) {
			err = errors.Join(err, c.runtime.Resume())
		}
		return err
	})
}

// EndRestore ends a restore under way, and waits for its end. If the program already runs, it is killed.
func (c *Container) EndRestore(ctx context.Context) error { return c.init.killUnstarted(ctx) }
