// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// At returns the cgroup at path, which is absolute in a hierarchy, wherever hierarchies are mounted. It may have a
// directory in each of them, in some, or in none.
func At(path string) (*Cgroup, error) {
	return at("/sys/fs/cgroup", "/proc/self/cgroup", Detect(), path)
}

// at has for At the root below which hierarchies are mounted, and the file that names them (cgroups(7)).
func at(root, hierarchies string, mode Mode, path string) (*Cgroup, error) {
	if mode == Unified {
		return New(map[string]string{"": filepath.Join(root, path)}), nil
	}
	data, err := os.ReadFile(hierarchies)
	if err != nil {
		return nil, fmt.Errorf("find cgroup %q: %w", path, err)
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(data)) {
		_, line, _ = strings.Cut(line, ":") // without the hierarchy's number
		controllers, _, _ := strings.Cut(line, ":")
		for controller := range strings.SplitSeq(controllers, ",") {
			mounts := []string{controllers, controller} // of several controllers together, with links to it, or without
			if controller == "" {
				mounts = []string{"unified"}
			}
			for _, mount := range mounts {
				if dir := filepath.Join(root, mount, path); isDir(dir) {
					paths[controller] = dir
				}
			}
		}
	}
	return New(paths), nil
}
