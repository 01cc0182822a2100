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
	"github.com/opencontainers/cgroups"
	fs1 "github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"golang.org/x/sys/unix"
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
// A directory only in hierarchies without controllers (name=systemd, v2 on a hybrid host) does not count. A file at
// path gives errdefs.ErrInvalidArgument.
func At(path string) (*Cgroup, error) {
	tops, err := roots()
	if err != nil {
		return nil, err
	}
	delete(tops, "systemd")
	paths := map[string]string{}
	for controller, top := range tops {
		dir := filepath.Join(top, path)
		exists, err := isDir(dir)
		if err != nil {
			return nil, err
		}
		if exists || cgroups.IsCgroup2UnifiedMode() {
			paths[controller] = dir
		}
	}
	if cgroups.IsCgroup2HybridMode() && len(paths) == 1 {
		delete(paths, "")
	}
	return New(paths), nil
}

// Missing lists the directories that the cgroup at path and its ancestors lack in each hierarchy, parents first.
func Missing(path string) ([]string, error) {
	tops, err := roots()
	if err != nil {
		return nil, err
	}
	var list []string
	for _, dir := range slices.Compact(slices.Sorted(maps.Values(tops))) {
		for element := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			dir = filepath.Join(dir, element)
			exists, err := isDir(dir)
			if err != nil {
				return nil, err
			}
			if !exists {
				list = append(list, dir)
			}
		}
	}
	return list, nil
}

// Make makes the directories that Missing listed for path, and prepares them for containers. It returns those that it
// made, since somebody else may have made some. After an error nothing is left.
func Make(path string, dirs []string) (made []string, err error) {
	defer func() {
		if err != nil {
			RemoveEmpty(made)
			made, err = nil, fmt.Errorf("make cgroup: %w", err)
		}
	}()
	for _, dir := range dirs {
		err := os.Mkdir(dir, 0o755)
		switch {
		case err == nil:
			made = append(made, dir)
		case errors.Is(err, fs.ErrExist):
			if _, err := isDir(dir); err != nil {
				return made, err
			}
		default:
			return made, classifyPath(err)
		}
	}
	if len(made) == 0 {
		return nil, nil
	}
	return made, prepare(path)
}

// prepare enables all controllers for the cgroup at path on v2. On v1 it fills the cpusets from the root to path, which
// take no process while they are empty.
func prepare(path string) error {
	if cgroups.IsCgroup2UnifiedMode() {
		return fs2.CreateCgroupPath(filepath.Join(cgroupRoot, path), &cgroups.Cgroup{Resources: &cgroups.Resources{}})
	}
	top := filepath.Join(cgroupRoot, "cpuset")
	if !exists(top) {
		return nil
	}
	const noProcess = -1
	return (&fs1.CpusetGroup{}).ApplyDir(filepath.Join(top, path), &cgroups.Resources{}, noProcess)
}

// classifyPath adds the errdefs class of an error of mkdir(2) or stat(2) where there is one.
func classifyPath(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENOTDIR): // no cgroup's name
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.EAGAIN): // cgroup.max.depth or cgroup.max.descendants of an ancestor
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}

// RemoveEmpty removes directories that Make made, and returns those that cannot be removed, such as one in use.
func RemoveEmpty(made []string) (remaining []string) {
	for _, dir := range slices.Backward(made) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			remaining = append(remaining, dir)
		}
	}
	slices.Reverse(remaining)
	return remaining
}

// isDir reports whether there is a directory at path. A file is an error.
func isDir(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err == nil && !info.IsDir():
		err = fmt.Errorf("cgroup %s is a file: %w", path, errdefs.ErrInvalidArgument)
	}
	return err == nil, classifyPath(err)
}
