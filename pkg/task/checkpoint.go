// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
)

// Checkpoint writes the container's state to disk. One that has directories of
// the host is refused: criu takes no mounts that lie within these, no checkpoint
// has the file system in memory that the root may be, and the overlays that mask
// secrets lie in the bundle, which ends with the container.
func (c *Container) Checkpoint(ctx context.Context, r process.CheckpointRequest) error {
	if err := c.host.RefuseCheckpoint("cannot be checkpointed", errdefs.ErrFailedPrecondition); err != nil {
		return fmt.Errorf("container %q: checkpoint: %w", c.ID(), err)
	}
	return c.Container.Checkpoint(ctx, r)
}
