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
	tops, err := mounts(root, hierarchies, mode)
	if err != nil {
		return nil, fmt.Errorf("find cgroup %q: %w", path, err)
	}
	paths := map[string]string{}
	for controller, top := range tops {
		if strings.HasPrefix(controller, named) {
			continue // systemd's, which controls nothing
		}
		if dir := filepath.Join(top, path); mode == Unified || isDir(dir) {
			paths[controller] = dir
		}
	}
	return New(paths), nil
}

// named begins what stands for controllers of a hierarchy of v1 that has none, but a name.
const named = "name="

// mounts are where the hierarchies of controllers are mounted; that of v2 is "".
func mounts(root, hierarchies string, mode Mode) (map[string]string, error) {
	if mode == Unified {
		return map[string]string{"": root}, nil
	}
	data, err := os.ReadFile(hierarchies)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(data)) {
		_, line, _ = strings.Cut(line, ":") // without the hierarchy's number
		controllers, _, _ := strings.Cut(line, ":")
		for controller := range strings.SplitSeq(controllers, ",") {
			names := []string{controllers, strings.TrimPrefix(controller, named)} // of several controllers together, with links to it, or without
			if controller == "" {
				names = []string{"unified"}
			}
			for _, name := range names {
				if dir := filepath.Join(root, name); found[controller] == "" && isDir(dir) {
					found[controller] = dir
				}
			}
		}
	}
	return found, nil
}
