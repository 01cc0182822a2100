// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Missing lists the directories that are not there of the cgroup at path, which is from the root of a hierarchy, and of
// those above it: in each hierarchy of this machine, parents first.
func Missing(path string) ([]string, error) {
	return missing("/sys/fs/cgroup", "/proc/self/cgroup", Detect(), path)
}

func missing(root, hierarchies string, mode Mode, path string) ([]string, error) {
	tops, err := mounts(root, hierarchies, mode)
	if err != nil {
		return nil, fmt.Errorf("find cgroup %q: %w", path, err)
	}
	var list []string
	for _, top := range slices.Compact(slices.Sorted(maps.Values(tops))) {
		dir := top
		for element := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			dir = filepath.Join(dir, element)
			info, err := os.Stat(dir)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				list = append(list, dir)
			case errors.Is(err, unix.ENAMETOOLONG):
				return nil, fmt.Errorf("cgroup %q: %w: %w", path, err, errdefs.ErrInvalidArgument)
			case err != nil:
				return nil, fmt.Errorf("cgroup %q: %w", path, err)
			case !info.IsDir():
				return nil, fmt.Errorf("cgroup %q: %s is a file: %w", path, dir, errdefs.ErrInvalidArgument)
			}
		}
	}
	return list, nil
}

// Make makes the directories that Missing listed, fit for containers in them: with all controllers on v2, with the CPUs
// and memory nodes of the one above on v1. It returns those that it made, and not somebody else meanwhile. When it fails,
// nothing is left.
func Make(dirs []string) (made []string, err error) {
	defer func() {
		if err != nil {
			RemoveEmpty(made)
			made, err = nil, fmt.Errorf("make cgroup: %w", err)
		}
	}()
	unified := Detect() == Unified
	for _, dir := range dirs {
		if unified {
			enableControllers(filepath.Dir(dir))
		}
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return made, withClass(err)
		}
		made = append(made, dir)
		if err := inheritCPUSet(dir); err != nil {
			return made, err
		}
	}
	return made, nil
}

// withClass adds the class of an error of mkdir(2) where there is one.
func withClass(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG): // a name that no cgroup can have
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.EAGAIN): // cgroup.max.depth or cgroup.max.descendants of one above
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}

// enableControllers enables those that dir and the cgroups above it have for those below. What cannot be enabled is
// missed when somebody sets a limit, who then has a better error.
func enableControllers(dir string) {
	const file = "cgroup.subtree_control"
	if !exists(filepath.Join(dir, file)) {
		return // above the root
	}
	enableControllers(filepath.Dir(dir))
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for controller := range strings.FieldsSeq(string(text)) {
		_ = write(filepath.Join(dir, file), "+"+controller) // one by one: each may fail for itself
	}
}

// inheritCPUSet gives a new cpuset of v1, which takes no process while it is empty, what the one above has.
func inheritCPUSet(dir string) error {
	if isCgroup2(dir) {
		return nil
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another hierarchy
		}
		if err == nil {
			err = write(filepath.Join(dir, name), string(text))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// RemoveEmpty removes directories that Make made, and returns those that stay: in use, or not to be removed.
func RemoveEmpty(made []string) (left []string) {
	for _, dir := range slices.Backward(made) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = append(left, dir)
		}
	}
	slices.Reverse(left)
	return left
}
