// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// DeleteAbandoned deletes the containers whose bundle is gone and that have exited, or were never restored. containerd
// removes the bundle when it gives up a container, as it does when a shim is too slow to answer after a restart of
// containerd, and then deletes nothing. DeleteAbandoned reports whether one is left that is running or could not be
// deleted.
func (m *Manager) DeleteAbandoned() bool {
	var left atomic.Bool
	var all sync.WaitGroup
	for _, c := range m.Containers() {
		if _, err := os.Stat(c.Init().Status().Bundle); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		all.Go(func() {
			if err := m.deleteDead(c); err != nil {
				left.Store(true)
				log.L.WithError(err).WithField("container", c.ID()).Warn("delete an abandoned container")
				return
			}
			log.L.WithField("container", c.ID()).Info("deleted an abandoned container")
		})
	}
	all.Wait()
	return left.Load()
}

func (m *Manager) deleteDead(c *Task) error {
	ctx, cancel := context.WithTimeout(context.Background(), deathTimeout)
	defer cancel()
	if c.Init().Pid() != 0 { // else it was to be restored, and has no process
		if _, err := c.Init().Wait(ctx); err != nil { // the delete command may just have killed it
			return fmt.Errorf("its bundle is gone, and it lives: %w", err)
		}
	}
	if _, err := m.Delete(ctx, c.ID(), ""); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}
