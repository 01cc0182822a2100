// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"

	"sandbox.internal/shim/pkg/process"
)

// Delete removes a container whose init has exited or was never started, or an
// exec of it. A Delete that failed can be tried again. A Create under way is
// ended; the container is not found then, unless it had come to be.
func (m *Manager) Delete(ctx context.Context, containerID, execID string) (process.Status, error) {
	if execID == "" {
		// containerd deletes what its client no longer waits for, and ends the
		// shim only when that worked (core/runtime/v2, TaskManager.Create).
		if err := m.interrupt(ctx, containerID); err != nil {
			return process.Status{}, err
		}
	}
	c, err := m.Container(containerID)
	if err != nil {
		return process.Status{}, err
	}
	if execID != "" {
		p, err := c.Process(execID)
		if err != nil {
			return process.Status{}, err
		}
		return c.DeleteExec(ctx, p)
	}
	status, err := c.Delete(ctx, c.undo)
	if err == nil {
		c.closeStats()
		m.release(containerID) // after TaskDelete was told, or Shutdown could come before it
	}
	return status, err
}
