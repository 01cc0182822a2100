// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/stdio"
)

// CheckpointRequest is how a container's state is written to disk. The fields but Path are those of
// containerd.runc.v1.CheckpointOptions; the zero value of each is the default.
type CheckpointRequest struct {
	Path                string   // directory for the image, absolute; made if its parent exists
	WorkPath            string   // directory for the log; empty for one that is removed after success
	ParentPath          string   // image of an earlier checkpoint, relative to Path
	CgroupsMode         string   // what is kept of cgroups: soft, full, strict, ignore; empty for CRIU's default
	EmptyNamespaces     []string // kinds of namespaces that are restored empty
	Exit                bool     // end the processes instead of letting them go on
	OpenTCP             bool     // allow established TCP connections
	ExternalUnixSockets bool     // allow unix sockets whose other end is outside
	Terminal            bool     // allow a controlling terminal from outside
	FileLocks           bool     // allow file locks
}

// Checkpoint writes the state of every process of the container to disk. It waits for execs that are being started,
// which takes milliseconds, gives up on one that hangs, and keeps others from being started meanwhile.
func (c *Container) Checkpoint(ctx context.Context, r CheckpointRequest) error {
	unlock, err := c.lockFreeze(ctx, OpCheckpoint)
	if err != nil {
		return err
	}
	defer unlock() // after which a TaskExit caused by r.Exit is told
	err = c.runtime.Checkpoint(r)
	if err == nil {
		c.events.Put(event.TaskCheckpointed{ContainerID: c.ID(), Checkpoint: r.Path})
	} else {
		err = c.init.wrap(fmt.Errorf("checkpoint: %w", err))
	}
	// What was frozen before is frozen again, and on cgroup v1 a frozen process does not die.
	if c.shownState() == Paused && (c.init.wasKilled() || err == nil && r.Exit) {
		err = errors.Join(err, c.thaw())
	}
	return err
}

// restore brings init back to life from its checkpoint. As with an exec, there is no process before that and none after
// a failure. The caller holds init's opLock.
func (c *Container) restore(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			c.init.failStart()
		}
	}()
	streams, err := stdio.Open(ctx, c.init.io, c.config.IOOwner)
	if err != nil {
		return c.init.wrap(err)
	}
	init, err := c.runtime.Restore(ctx, streams)
	if err != nil {
		err = fmt.Errorf("restore from %q: %w", c.config.Checkpoint, err)
	} else {
		// An OOM kill before this is not told: the cgroup does not exist before its processes run.
		err = c.initCreated(ctx, init)
	}
	if err != nil {
		_ = streams.Close() // nothing that was written matters any more
		return c.init.wrap(err)
	}
	c.init.setHandle(init, streams)
	c.init.commit(OpStart)
	c.events.Put(event.TaskStart{ContainerID: c.ID(), Pid: init.Pid()})
	c.init.startWaiter()
	return nil
}
