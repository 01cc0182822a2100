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
	"time"

	"github.com/containerd/errdefs"
)

// childHierarchies are the v1 hierarchies in which a child has a directory: those that count for it, and the freezer,
// by which all of it can be killed. In the others its processes stay in the parent. There a child would get a share of
// its own, or in cpuset no CPU at all.
var childHierarchies = []string{"", "freezer", "pids", "cpuacct", "memory"}

// MakeChild makes a cgroup in this one, without limits. On v2 it has the controllers that the parent enables for its
// children, which are none while the parent holds processes (cgroup-v2.rst, "No Internal Process Constraint"). Remove
// removes it. A name that is taken is errdefs.ErrAlreadyExists.
func (c *Cgroup) MakeChild(name string) (*Cgroup, error) {
	paths := make(map[string]string)
	for _, controller := range childHierarchies {
		if dir := c.paths[controller]; dir != "" && countsChildren(controller, dir) {
			paths[controller] = filepath.Join(dir, name)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("make cgroup %s: no hierarchy to make it in: %w", name, errdefs.ErrFailedPrecondition)
	}
	child := New(paths)
	for i, dir := range child.dirs {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			continue
		}
		for _, made := range child.dirs[:i] {
			err = errors.Join(err, os.Remove(made))
		}
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrAlreadyExists)
		}
		return nil, err
	}
	return child, nil
}

// countsChildren reports whether the processes of a child count in dir too. Before Linux 5.11 those of the v1 memory
// controller do only if dir says so; a child would then escape the container's limit.
func countsChildren(controller, dir string) bool {
	if controller != "memory" {
		return true
	}
	text, err := os.ReadFile(filepath.Join(dir, "memory.use_hierarchy"))
	return err != nil || string(text) != "0\n" // no such file: v2, or a kernel that always counts
}

// ChildPaths returns the paths of c for a process in child, which MakeChild made with this name.
func (c *Cgroup) ChildPaths(child *Cgroup, name string) map[string]string {
	paths := maps.Clone(c.paths)
	for controller, dir := range paths {
		// By directory: cpu and cpuacct may share a hierarchy.
		if below := filepath.Join(dir, name); dir != "" && slices.Contains(child.dirs, below) {
			paths[controller] = below
		}
	}
	return paths
}

// Usage is what the processes of a cgroup have used since it was made, including those that have ended.
type Usage struct {
	CPU    time.Duration
	Memory uint64 // the peak in bytes; 0 where it is not counted, see MakeChild
}

// Usage reads the usage. A cgroup that is gone is errdefs.ErrNotFound.
func (c *Cgroup) Usage() (u Usage, err error) {
	peak := "memory.peak" // since Linux 5.19
	if c.unified {
		u.CPU, err = cpuTimeV2(c.Path(""))
	} else {
		peak = "memory.max_usage_in_bytes"
		if dir := c.Path("cpuacct"); dir != "" {
			var nanos uint64
			nanos, err = readNumber(filepath.Join(dir, "cpuacct.usage"))
			u.CPU = time.Duration(nanos)
		}
	}
	if err != nil {
		if IsGone(err) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
		}
		return Usage{}, fmt.Errorf("read usage of cgroup %s: %w", c, err)
	}
	if dir := c.Path("memory"); dir != "" {
		u.Memory, _ = readNumber(filepath.Join(dir, peak)) // there is no file where it is not counted
	}
	return u, nil
}

func cpuTimeV2(dir string) (time.Duration, error) {
	file, err := openKeyed(dir, "cpu.stat")
	if err != nil {
		return 0, err
	}
	defer file.Close() //nolint:errcheck // closing a control file cannot fail
	micros, err := file.value("usage_usec")
	return time.Duration(micros) * time.Microsecond, err
}
