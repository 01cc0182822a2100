// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
)

// nesting are the v1 hierarchies in which a nested cgroup has a directory: where it counts, and where it is frozen so that
// all of it can be killed. In the others its processes stay in the cgroup itself, since there they would get shares of
// their own, or, in cpuset, nothing at all.
var nesting = []string{"", "freezer", "pids", "cpuacct", "memory"}

// MakeChild makes a cgroup in this one, and no limits. On v2 it has the controllers that the cgroup gives to those in it, which
// are none while the cgroup holds processes (cgroup-v2.rst, "No Internal Process Constraint"). Remove removes it. A name
// that is taken is errdefs.ErrAlreadyExists.
func (c *Cgroup) MakeChild(name string) (*Cgroup, error) {
	paths := make(map[string]string)
	for _, controller := range nesting {
		if dir := c.paths[controller]; dir != "" && counted(controller, dir) {
			paths[controller] = filepath.Join(dir, name)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("make cgroup %s: no hierarchy to make it in: %w", name, errdefs.ErrFailedPrecondition)
	}
	nested := New(paths)
	for i, dir := range nested.dirs {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			continue
		}
		for _, made := range nested.dirs[:i] {
			err = errors.Join(err, os.Remove(made))
		}
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrAlreadyExists)
		}
		return nil, err
	}
	return nested, nil
}

// counted tells whether the processes of a nested cgroup count in dir too. Before Linux 5.11 those of the v1 memory
// controller do only if dir says so, and with no limit above them they would be outside of the container's.
func counted(controller, dir string) bool {
	if controller != "memory" {
		return true
	}
	text, err := os.ReadFile(filepath.Join(dir, "memory.use_hierarchy"))
	return err != nil || string(text) != "0\n" // no such file: v2, or a kernel that always counts
}

// ChildPaths returns what the paths of c become for a process in nested, which MakeChild made with this name.
func (c *Cgroup) ChildPaths(nested *Cgroup, name string) map[string]string {
	paths := maps.Clone(c.paths)
	for controller, dir := range paths {
		// By directory: cpu and cpuacct may be one hierarchy.
		if below := filepath.Join(dir, name); dir != "" && slices.Contains(nested.dirs, below) {
			paths[controller] = below
		}
	}
	return paths
}

// Usage is what the processes of a cgroup have used since it was made, also those that have ended.
type Usage struct {
	CPU    time.Duration
	Memory uint64 // the most at a time, in bytes; 0 where it is not counted, see MakeChild
}

// Usage reads it. A cgroup that is gone is errdefs.ErrNotFound.
func (c *Cgroup) Usage() (u Usage, err error) {
	memory := "memory.peak" // since Linux 5.19
	if c.unified {
		var micros uint64
		micros, err = usec(c.Path(""))
		u.CPU = time.Duration(micros) * time.Microsecond
	} else {
		memory = "memory.max_usage_in_bytes"
		if dir := c.Path("cpuacct"); dir != "" {
			var nanos uint64
			nanos, err = number(filepath.Join(dir, "cpuacct.usage"))
			u.CPU = time.Duration(nanos)
		}
	}
	if err != nil {
		if gone(err) {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
		}
		return Usage{}, fmt.Errorf("read usage of cgroup %s: %w", c, err)
	}
	if dir := c.Path("memory"); dir != "" {
		u.Memory, _ = number(filepath.Join(dir, memory)) // there is no file where it is not counted
	}
	return u, nil
}

// number reads a file that holds one.
func number(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse %s: %w", path, err)
	}
	return n, nil
}

// usec reads the CPU time of a v2 cgroup, in microseconds.
func usec(dir string) (uint64, error) {
	file, err := openCounter(dir, "cpu.stat")
	if err != nil {
		return 0, err
	}
	defer file.Close() //nolint:errcheck // closing a control file cannot fail
	return file.value("usage_usec")
}
