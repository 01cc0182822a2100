// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// noLimitV1 is what v1 shows where there is no limit, on machines with pages of up to 64 KiB: the largest counter of
// pages, in bytes.
const noLimitV1 = math.MaxInt64 &^ (64<<10 - 1)

// MemoryLimit returns the lowest memory limit of the cgroup and its ancestors in bytes, or math.MaxUint64 if there is
// none.
func (c *Cgroup) MemoryLimit() (uint64, error) {
	file := "memory.limit_in_bytes"
	if c.unified {
		file = "memory.max"
	}
	least := uint64(math.MaxUint64)
	for dir := c.Path("memory"); dir != "" && dir != "/"; dir = filepath.Dir(dir) {
		// On v2 the root has no such file, nor has a cgroup without the controller.
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil && !IsGone(err) {
			return 0, err
		}
		limit := strings.TrimSpace(string(text))
		if err != nil || limit == "max" {
			continue
		}
		n, err := strconv.ParseUint(limit, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir, file), err)
		}
		if n < noLimitV1 {
			least = min(least, n)
		}
	}
	return least, nil
}

// MaxDepth is how deep cgroups may be nested in a container's. systemd and a kubelet in a container, with containers
// that run systemd themselves, need about eleven levels. This leaves room for two more such generations.
const MaxDepth = 32

// DepthFile limits how deep cgroups are nested in one (cgroup-v2.rst, "Core Interface Files").
const DepthFile = "cgroup.max.depth"

// LimitDepth sets DepthFile to MaxDepth unless it has a limit already. v1 has no such limit. Lower limits of ancestors
// still apply. A kernel without the file is errdefs.ErrNotFound.
func (c *Cgroup) LimitDepth() error {
	dir := c.paths[""]
	if dir == "" {
		return nil
	}
	path := filepath.Join(dir, DepthFile)
	now, err := readSettings(path)
	if err == nil && now == "max" {
		err = Write(path, strconv.Itoa(MaxDepth))
	}
	if err != nil {
		if IsGone(err) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
		}
		return fmt.Errorf("limit the depth of cgroup %s: %w", c, err)
	}
	return nil
}
