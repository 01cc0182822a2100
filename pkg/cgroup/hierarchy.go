// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
)

const (
	cgroupRoot = fs2.UnifiedMountpoint
	hybridRoot = cgroupRoot + "/unified"
)

// roots returns the root directory of each controller's hierarchy. The key of the v2 hierarchy is "".
func roots() (map[string]string, error) {
	if cgroups.IsCgroup2UnifiedMode() {
		return map[string]string{"": cgroupRoot}, nil
	}
	mounts, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	found := map[string]string{}
	for _, m := range mounts {
		for _, controller := range m.Subsystems {
			found[controller] = m.Mountpoint
		}
	}
	if cgroups.IsCgroup2HybridMode() {
		found[""] = hybridRoot
	}
	return found, nil
}

// At returns the cgroup at path, which is absolute in a hierarchy: existing directories on v1, the directory on v2.
// A directory only in hierarchies without controllers (name=systemd, v2 on a hybrid host) does not count.
func At(path string) (*Cgroup, error) {
	tops, err := roots()
	if err != nil {
		return nil, err
	}
	delete(tops, "systemd")
	paths := map[string]string{}
	for controller, top := range tops {
		if dir := filepath.Join(top, path); exists(dir) || cgroups.IsCgroup2UnifiedMode() {
			paths[controller] = dir
		}
	}
	if cgroups.IsCgroup2HybridMode() && len(paths) == 1 {
		delete(paths, "")
	}
	return New(paths), nil
}
