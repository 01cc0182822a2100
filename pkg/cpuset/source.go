// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Parent as a source is the parent of the container's cgroup, which is the pod's.
const Parent = "parent"

// locate returns the absolute path of a source for the destination dir. It exists and is below root without symbolic
// links. A source that does not exist is errdefs.ErrNotFound, one that is not allowed errdefs.ErrInvalidArgument.
func locate(root, source, dir string) (string, error) {
	refuse := func(why string) (string, error) {
		return "", fmt.Errorf("cpuset source %q: %s: %w", source, why, errdefs.ErrInvalidArgument)
	}
	path := filepath.Join(root, source)
	switch {
	case dir != filepath.Clean(dir) || !below(root, dir):
		return "", fmt.Errorf("cgroup %q: must be a clean path below %s: %w", dir, root, errdefs.ErrInvalidArgument)
	case source == Parent:
		return filepath.Dir(dir), nil
	case slices.Contains(strings.Split(source, "/"), ".."):
		return refuse("must not have an element ..")
	case !below(root, path):
		return refuse("must be " + Parent + " or a path below " + root)
	case path == dir || below(dir, path):
		return refuse("must not be the container's own cgroup or in it")
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("cpuset source %q: cgroup %s: %w", source, path, errdefs.ErrNotFound)
	case err != nil:
		return refuse("must be a directory, without symbolic links: " + err.Error())
	case real != path || !isDir(path):
		return refuse("must be a directory, without symbolic links")
	}
	return path, nil
}

// below reports whether the clean path is inside dir.
func below(dir, path string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }

// ancestors returns dir and the directories above it up to root, which has no list and is left out.
func ancestors(root, dir string) []string {
	var dirs []string
	for ; below(root, dir); dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	return dirs
}
