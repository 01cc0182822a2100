// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/shim/integration/harness"
)

// MakeCgroup makes the cgroup at path in every hierarchy, as a kubelet does before it runs a pod. Its parent is there.
func MakeCgroup(path string) error {
	roots, err := harness.CgroupRoots()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := filepath.Join(root, path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		// A new cpuset of v1 is empty, and takes no process before it has both.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file)); err == nil {
				_ = os.WriteFile(filepath.Join(dir, file), text, 0o644) // v2's is inherited, and its root has none
			}
		}
	}
	return nil
}
