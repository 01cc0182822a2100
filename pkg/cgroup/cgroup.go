// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup hides the differences between cgroup v1, hybrid and v2 for one cgroup: its processes, how all of them
// are killed, how it is removed, and when the kernel kills one for lack of memory.
//
// The managers of github.com/containerd/cgroups/v3 walk cgroups by paths and freeze without a bound. A container that
// may make cgroups can nest them deeper than a path can name, and keep a freeze from completing. So processes, kill,
// freeze, removal and OOM kills are done here. Package hierarchy uses cgroups/v3 to find and make cgroups.
//
// The package works on paths that the container runtime made. It makes a cgroup only in MakeChild, and moves no
// process. A Cgroup is immutable and safe for concurrent use. Nothing is cached: each call asks the kernel.
//
// An OOMWatch owns one goroutine, which Stop ends and joins. The watch holds its mutex while it reads the counter and
// while it calls notify, so notify must not call the watch.
//
// A cgroup that is gone is errdefs.ErrNotFound, or success where the aim was to leave nothing (Kill, Remove, Thaw).
package cgroup

import (
	"maps"
	"slices"
)

// Cgroup is the cgroup of one container: one directory on v2, one in each hierarchy on v1.
type Cgroup struct {
	paths   map[string]string
	dirs    []string // the distinct directories, in a fixed order
	unified bool
}

// New returns the cgroup with the given paths, as libcontainer's State.CgroupPaths has them: on v1 each controller's
// name with its absolute path, on hybrid also the key "" for the v2 hierarchy, on v2 the key "" alone. It does not
// access them.
func New(paths map[string]string) *Cgroup {
	c := &Cgroup{paths: maps.Clone(paths), dirs: slices.Sorted(maps.Values(paths))}
	c.dirs = slices.Compact(c.dirs) // cpu and cpuacct often share a hierarchy
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

// Exists reports whether any directory of the cgroup exists.
func (c *Cgroup) Exists() bool { return slices.ContainsFunc(c.dirs, exists) }

// String returns the path of the cgroup for messages: on v1 that of the memory controller, or else any.
func (c *Cgroup) String() string {
	switch {
	case c.Path("memory") != "":
		return c.Path("memory")
	case len(c.dirs) > 0:
		return c.dirs[0]
	}
	return "(no cgroup)"
}
