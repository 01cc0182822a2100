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
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// childHierarchies are the v1 hierarchies in which a child has a directory. Not cpu: a child would get its own share.
// Not cpuset: a child starts without CPUs.
var childHierarchies = []string{"", "freezer", "pids", "cpuacct", "memory"}

// MakeChild makes a child cgroup without limits. On v2 it has the controllers that Delegate enables. A name that is
// taken gives errdefs.ErrAlreadyExists.
func (c *Cgroup) MakeChild(name string) (*Cgroup, error) {
	child := c.Child(name)
	if child.IsNone() {
		return nil, fmt.Errorf("make cgroup %s: no hierarchy to make it in: %w", name, errdefs.ErrFailedPrecondition)
	}
	for i, dir := range child.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			for _, made := range child.dirs[:i] {
				err = errors.Join(err, os.Remove(made))
			}
			if errors.Is(err, fs.ErrExist) {
				err = fmt.Errorf("%w: %w", err, errdefs.ErrAlreadyExists)
			}
			return nil, err
		}
	}
	return child, nil
}

// Child returns the child that MakeChild makes.
func (c *Cgroup) Child(name string) *Cgroup {
	paths := make(map[string]string)
	for _, controller := range childHierarchies {
		if dir := c.paths[controller]; dir != "" {
			paths[controller] = filepath.Join(dir, name)
		}
	}
	return New(paths)
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

// Delegate enables the controllers for limits of children. On v2 it moves the processes of c into the child leaf first
// (cgroup-v2.rst, "No Internal Process Constraint"); afterwards no process may enter c itself.
func (c *Cgroup) Delegate(leaf string) (err error) {
	if !c.unified {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("delegate controllers of cgroup %s: %w", c, err)
		}
	}()
	leaf = filepath.Join(c.Path(""), leaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := c.moveAll(leaf); err != nil {
		return err
	}
	for _, controller := range []string{"memory", "pids"} {
		err := Write(c.File("cgroup.subtree_control"), "+"+controller)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // c does not have the controller: a limit that needs it fails
			return err
		}
	}
	return nil
}

// moveAll moves the processes of c into another directory, until none is left.
func (c *Cgroup) moveAll(dir string) error {
	for {
		text, err := os.ReadFile(filepath.Join(c.Path(""), procsFile))
		if err != nil {
			return err
		}
		pids, err := parseProcs(nil, text)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			err := Write(filepath.Join(dir, procsFile), strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
		}
	}
}

// LimitMemory limits memory to a number of bytes, without swap. An OOM kill ends all processes on v2, one on v1.
func (c *Cgroup) LimitMemory(memory int64) error {
	if c.unified {
		err := c.set("memory.swap.max", 0)
		if errdefs.IsFailedPrecondition(err) { // the kernel has no swap
			err = nil
		}
		return errors.Join(c.set("memory.max", memory), err, c.set("memory.oom.group", 1))
	}
	if err := c.set("memory.limit_in_bytes", memory); err != nil {
		return err
	}
	err := c.set("memory.memsw.limit_in_bytes", memory)
	if errdefs.IsFailedPrecondition(err) { // swap is not counted
		err = c.set("memory.swappiness", 0) // not used then, either
	}
	return err
}

// LimitPids limits the number of processes and threads.
func (c *Cgroup) LimitPids(n int64) error { return c.set("pids.max", n) }

func (c *Cgroup) set(file string, n int64) error {
	path := c.File(file)
	err := fs.ErrNotExist
	if path != "" {
		err = Write(path, strconv.FormatInt(n, 10))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cgroup %s has no %s: %w", c, file, errdefs.ErrFailedPrecondition)
	}
	return err
}

// Usage is the use of a cgroup since it was made.
type Usage struct {
	CPU    time.Duration
	Memory uint64 // the peak in bytes; 0 where it is not counted
}

// Usage reads the usage. If the cgroup is gone, the error is errdefs.ErrNotFound.
func (c *Cgroup) Usage() (Usage, error) {
	cpu, key, unit, peak := "cpuacct.usage", "", time.Nanosecond, "memory.max_usage_in_bytes"
	if c.unified {
		cpu, key, unit, peak = "cpu.stat", "usage_usec", time.Microsecond, "memory.peak" // since Linux 5.19
	}
	var u Usage
	if path := c.File(cpu); path != "" {
		n, err := readNumber(path, key)
		if err != nil {
			return Usage{}, fmt.Errorf("read usage of cgroup %s: %w", c, classify(err))
		}
		u.CPU = time.Duration(n) * unit
	}
	u.Memory = c.counter(peak, "")
	return u, nil
}

// Account extends Usage with counters of limits.
type Account struct {
	Usage
	User, System time.Duration
	OOMKills     uint64 // of its processes
	ForksRefused uint64 // by its limit of processes
}

// Account reads the account; what the kernel does not count is 0. A cgroup that is gone gives errdefs.ErrNotFound.
func (c *Cgroup) Account() (a Account, err error) {
	if a.Usage, err = c.Usage(); err != nil {
		return Account{}, err
	}
	a.ForksRefused = c.counter("pids.events", "max")
	// Since Linux 6.11, pids.events of v2 includes the limits of cgroups below.
	if n, err := readNumber(c.File("pids.events.local"), "max"); err == nil {
		a.ForksRefused = n
	}
	if c.unified {
		a.User = time.Duration(c.counter("cpu.stat", "user_usec")) * time.Microsecond
		a.System = time.Duration(c.counter("cpu.stat", "system_usec")) * time.Microsecond
		a.OOMKills = c.counter(memoryEventsFile, "oom_kill")
	} else {
		a.User = time.Duration(c.counter("cpuacct.usage_user", ""))
		a.System = time.Duration(c.counter("cpuacct.usage_sys", ""))
		a.OOMKills = c.counter(oomControlFile, "oom_kill")
	}
	if !c.Exists() { // it went while it was read, and what was missing counted as 0
		return Account{}, fmt.Errorf("read account of cgroup %s: %w", c, errdefs.ErrNotFound)
	}
	return a, nil
}

func (c *Cgroup) counter(file, key string) uint64 {
	n, _ := readNumber(c.File(file), key) // no such file: it is not counted
	return n
}
