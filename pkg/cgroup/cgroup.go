// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Mode says how the machine's cgroup hierarchies are mounted.
type Mode int

// The three layouts that systemd knows (systemd.io/CGROUP_DELEGATION, "Three Different Tree Setups").
const (
	Legacy  Mode = iota // v1: one hierarchy for each controller
	Hybrid              // v1, and a v2 hierarchy with few controllers or none at /sys/fs/cgroup/unified
	Unified             // v2: one hierarchy
)

// String returns the name of the layout in systemd's words.
func (m Mode) String() string {
	switch m {
	case Legacy:
		return "legacy"
	case Hybrid:
		return "hybrid"
	case Unified:
		return "unified"
	}
	return "unknown"
}

// Detect asks which file systems are mounted at the places that the kernel's and systemd's documents name. A machine
// without any cgroup mount is Legacy.
func Detect() Mode {
	switch {
	case isCgroup2("/sys/fs/cgroup"):
		return Unified
	case isCgroup2("/sys/fs/cgroup/unified"):
		return Hybrid
	}
	return Legacy
}

func isCgroup2(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// Cgroup is the cgroup of one container: one directory on v2, one in each hierarchy on v1.
type Cgroup struct {
	paths   map[string]string
	dirs    []string // the distinct directories, in a fixed order
	unified bool
}

// New returns the cgroup with the given paths, as libcontainer's State.CgroupPaths has them: on v1 each controller's name
// with its absolute path, on hybrid also the key "" for the v2 hierarchy, on v2 the key "" alone. It does not look at them.
func New(paths map[string]string) *Cgroup {
	c := &Cgroup{paths: maps.Clone(paths), dirs: slices.Sorted(maps.Values(paths))}
	c.dirs = slices.Compact(c.dirs) // cpu and cpuacct are often one hierarchy
	c.dirs = slices.DeleteFunc(c.dirs, func(dir string) bool { return dir == "" })
	c.unified = len(paths) == 1 && paths[""] != ""
	return c
}

// Unified reports whether the cgroup is on v2, where all controllers share one directory.
func (c *Cgroup) Unified() bool { return c.unified }

// Path returns the absolute path of the directory with the files of controller, or "" if there is none. On v2 it is the
// same for every name. On hybrid the name "" is the directory in the v2 hierarchy.
func (c *Cgroup) Path(controller string) string {
	if c.unified {
		return c.paths[""]
	}
	return c.paths[controller]
}

// Exists reports whether any directory of the cgroup is there.
func (c *Cgroup) Exists() bool {
	return slices.ContainsFunc(c.dirs, isDir)
}

// String returns the path of the cgroup for messages: on v1 that of the memory controller or else of any.
func (c *Cgroup) String() string {
	switch {
	case c.Path("memory") != "":
		return c.Path("memory")
	case len(c.dirs) > 0:
		return c.dirs[0]
	}
	return "(no cgroup)"
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// gone reports whether err means that the cgroup was removed: its files cannot be opened any more, and those that are
// open answer ENODEV.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
