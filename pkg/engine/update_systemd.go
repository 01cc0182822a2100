// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/opencontainers/cgroups"

	"sandbox.internal/shim/pkg/cgroup"
)

// restoreProperties sets the properties of the container's unit to what the
// files of cgroup v2 said. libcontainer makes properties of the files that
// systemd knows, before it writes to the files (cgroups v0.1.0 systemd/v2.go,
// Set). That one of these is refused does not matter: their order is not that
// of a snapshot's Restore, which follows.
func (c *container) restoreProperties(snapshot *cgroup.Snapshot) error {
	unified := map[string]string{}
	for path, text := range snapshot.Texts() {
		if text != "" { // no CPUs of its own: no property can say so
			unified[filepath.Base(path)] = text
		}
	}
	err := c.manager.Set(&cgroups.Resources{SkipDevices: true, Unified: unified})
	if _, refused := errors.AsType[*fs.PathError](err); refused || err == nil {
		return nil
	}
	return fmt.Errorf("properties of the unit: %w", err)
}
