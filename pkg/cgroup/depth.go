// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
)

// MaxDepth is how deep cgroups are nested in a container's at most. systemd and a kubelet in a container, with containers that
// have a systemd of their own, need about eleven; so they have room for the same again in those, and once more.
const MaxDepth = 32

// DepthFile bounds how deep cgroups are nested in one (cgroup-v2.rst, "Core Interface Files").
const DepthFile = "cgroup.max.depth"

// BoundDepth lets cgroups be nested up to MaxDepth in this one and no deeper, unless it has a bound already. v1 has none. What the
// cgroups above allow is not exceeded: the kernel asks each of them. A kernel without is errdefs.ErrNotFound.
func (c *Cgroup) BoundDepth() error {
	dir := c.paths[""]
	if dir == "" {
		return nil
	}
	path := filepath.Join(dir, DepthFile)
	now, err := readSettings(path)
	if err == nil && now == "max" {
		err = write(path, strconv.Itoa(MaxDepth))
	}
	if err != nil {
		if gone(err) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
		}
		return fmt.Errorf("bound the depth of cgroup %s: %w", c, err)
	}
	return nil
}
