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
)

// MemoryLimit is how much memory what is in the cgroup can have, by the limits of the cgroup and of those above it:
// math.MaxUint64 where there are none.
func (c *Cgroup) MemoryLimit() (uint64, error) {
	file := "memory.limit_in_bytes"
	if c.unified {
		file = "memory.max"
	}
	least := uint64(math.MaxUint64)
	for dir := c.Path("memory"); dir != "" && dir != "/"; dir = filepath.Dir(dir) {
		// On v2 the root has no such file, nor has a cgroup without the controller.
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil && !gone(err) {
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

// noLimitV1 is what v1 shows where there is no limit, on machines with pages of up to 64 KiB: the largest counter of pages, in bytes.
const noLimitV1 = math.MaxInt64 &^ (64<<10 - 1)
