// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups/systemd"

	"sandbox.internal/shim/pkg/cgroup"
)

const sliceSuffix = ".slice"

// parentOf is the parent in an OCI cgroupsPath: the slice of slice:prefix:name, or the directory of a path.
func parentOf(cgroupsPath string) string {
	if cgroupsPath == "" {
		return ""
	}
	if !strings.Contains(cgroupsPath, "/") && strings.Count(cgroupsPath, ":") == 2 {
		slice, _, _ := strings.Cut(cgroupsPath, ":")
		return slice
	}
	return path.Dir(cgroupsPath)
}

// parentPath is the path of a pod's parent from the root of a hierarchy, "" for none. A slice says by its suffix that
// the driver is systemd's, as CRI has it; of its path only the last element counts there.
func parentPath(parent string, systemdDriver bool) (string, error) {
	refuse := func(want string) (string, error) {
		return "", fmt.Errorf("cgroup_parent %q: must be %s: %w", parent, want, errdefs.ErrInvalidArgument)
	}
	switch {
	case parent == "":
		return "", nil
	case strings.ContainsRune(parent, 0):
		return refuse("without NUL")
	case strings.HasSuffix(parent, sliceSuffix):
		expanded, err := systemd.ExpandSlice(path.Base(parent))
		if err != nil {
			return refuse("a slice such as a-b.slice")
		}
		return expanded, nil
	case systemdDriver:
		return refuse("a slice such as a-b.slice, since the cgroup driver is systemd's")
	case !path.IsAbs(parent) || path.Clean(parent) != strings.TrimSuffix(parent, "/") && parent != "/":
		return refuse("an absolute path without . and .., or a slice such as a-b.slice")
	}
	return path.Clean(parent), nil
}

// checkParent refuses a cgroup that is in no hierarchy. It is its owner's, who makes it before the pod; a slice that is
// not there systemd makes with the first scope in it.
func checkParent(parent, cgroupPath string) error {
	if cgroupPath == "" {
		return nil
	}
	group, err := cgroup.At(cgroupPath)
	if err != nil {
		return err
	}
	if group.Exists() {
		return nil
	}
	hint := ""
	if strings.HasSuffix(parent, sliceSuffix) {
		if systemd.IsRunningSystemd() {
			return nil
		}
		hint = ", and systemd, whose slices are, does not run this machine"
	}
	return fmt.Errorf("cgroup_parent %q: no cgroup %q in any hierarchy%s: %w", parent, cgroupPath, hint, errdefs.ErrNotFound)
}
