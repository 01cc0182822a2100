// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup hides the differences between cgroup v1, hybrid and v2 for one cgroup: its processes, how all of them
// are killed, how it is removed, and when the kernel kills one for lack of memory.
//
// The managers of github.com/containerd/cgroups/v3 walk cgroups by paths and freeze without a bound. A container that
// may make cgroups can nest them deeper than a path can name, and keep a freeze from completing. So processes, kill,
// freeze, removal and OOM kills are done here. Package hierarchy uses cgroups/v3 to find and make cgroups.
//
// The package works on paths that the container runtime made. It makes a cgroup only in MakeChild and Delegate,
// and moves processes only in Delegate. A Cgroup is safe for concurrent use. Nothing is cached: each call asks the
// kernel.
//
// An OOMWatch owns one goroutine, which Stop ends and joins. The watch holds its mutex while it reads the counter and
// while it calls notify, so notify must not call the watch.
//
// A cgroup that is gone gives errdefs.ErrNotFound, or success if the aim was to leave nothing (Kill, Remove, Thaw).
package cgroup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Cgroup is the cgroup of one container: one directory on v2, one in each hierarchy on v1.
type Cgroup struct {
	paths   map[string]string
	dirs    []string // the distinct directories, in a fixed order
	unified bool
	leaf    atomic.Pointer[string] // where Delegate has moved the processes; nil if it has not
}

// New returns the cgroup with the given paths, as libcontainer's State.CgroupPaths has them: on v1 each controller's
// name with its absolute path, on hybrid also the key "" for the v2 hierarchy, on v2 only the key "". It does not
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

// File returns the absolute path of the control file with the given name, or "" if the cgroup is not in the hierarchy
// of its controller, which is the part of the name before the first dot.
func (c *Cgroup) File(name string) string {
	controller, _, _ := strings.Cut(name, ".")
	dir := c.Path(controller)
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// IsNone reports whether the cgroup has no directory anywhere: its container has no cgroup.
func (c *Cgroup) IsNone() bool { return len(c.dirs) == 0 }

// Exists reports whether any directory of the cgroup exists.
func (c *Cgroup) Exists() bool { return slices.ContainsFunc(c.dirs, exists) }

// String returns the path of the cgroup for messages: on v1 that of the memory controller, or else any.
func (c *Cgroup) String() string {
	dirs := append(slices.Clip(c.dirs), "(no cgroup)")
	return cmp.Or(c.Path("memory"), dirs[0])
}

// IsGone reports whether err means that the cgroup was removed: its files cannot be opened any more, and those that are
// open return ENODEV.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func classify(err error) error {
	if IsGone(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return err
}

// Write writes text and a newline to a control file, in one write as the kernel wants it. It does not create the file.
func Write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return writeAndClose(f, text)
}

func writeAndClose(f *os.File, text string) error {
	_, err := f.WriteString(text + "\n")
	if err != nil {
		err = fmt.Errorf("%w (value %q)", err, text)
	}
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// readNumber reads the number in a control file or, unless key is empty, on the line that begins with key. It is
// math.MaxUint64 for the word max.
func readNumber(path, key string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // closing a control file cannot fail
	return numberIn(f, key)
}

// numberIn is readNumber for an open file. The read is positioned, so it disturbs no other reader.
func numberIn(f *os.File, key string) (uint64, error) {
	var buf [512]byte // memory.events has about 100 bytes
	n, err := f.ReadAt(buf[:], 0)
	if n == 0 {
		return 0, err
	}
	number, err := numberOf(buf[:n], key)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return number, nil
}

// numberOf is readNumber for a file's text.
func numberOf(text []byte, key string) (uint64, error) {
	for line := range bytes.Lines(text) {
		name, number, keyed := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if !keyed {
			name, number = nil, name
		}
		if string(name) != key {
			continue
		}
		if string(number) == "max" {
			return math.MaxUint64, nil
		}
		n, err := strconv.ParseUint(string(number), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse: %w", err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("has no line %q: %w", key, errdefs.ErrNotImplemented)
}

// noLimitV1 is what v1 shows where there is no limit, on machines with pages of up to 64 KiB: the largest counter of
// pages, in bytes.
const noLimitV1 = math.MaxInt64 &^ (64<<10 - 1)

// MemoryLimit returns the lowest memory limit of the cgroup and its ancestors in bytes, or math.MaxUint64 if there is
// none.
func (c *Cgroup) MemoryLimit() (uint64, error) {
	file := "memory.limit_in_bytes"
	if c.unified {
		file = "memory.max"
	}
	least := uint64(math.MaxUint64)
	for dir := c.Path("memory"); dir != "" && dir != "/"; dir = filepath.Dir(dir) {
		// On v2 the root has no such file, nor has a cgroup without the controller.
		n, err := readNumber(filepath.Join(dir, file), "")
		switch {
		case err == nil && n < noLimitV1:
			least = min(least, n)
		case err != nil && !IsGone(err):
			return 0, err
		}
	}
	return least, nil
}

// MaxDepth is how deep cgroups may be nested in a container's. systemd and a kubelet in a container, with containers
// that run systemd themselves, need about eleven levels. This leaves room for two more such generations.
const MaxDepth = 32

// DepthFile limits how deep cgroups are nested in one (cgroup-v2.rst, "Core Interface Files").
const DepthFile = "cgroup.max.depth"

// LimitDepth sets DepthFile to MaxDepth unless it has a limit already. v1 has no such limit. Lower limits of ancestors
// still apply. If the kernel has no such file, the error is errdefs.ErrNotFound.
func (c *Cgroup) LimitDepth() error {
	if c.paths[""] == "" {
		return nil
	}
	path := filepath.Join(c.paths[""], DepthFile)
	now, err := os.ReadFile(path)
	if err == nil && string(now) == "max\n" {
		err = Write(path, strconv.Itoa(MaxDepth))
	}
	if err != nil {
		return fmt.Errorf("limit the depth of cgroup %s: %w", c, classify(err))
	}
	return nil
}

// childHierarchies are the v1 hierarchies in which a child has a directory: those that account for it, and the freezer,
// by which all of it can be killed. In other hierarchies processes stay in the parent: a cpu child would get its own
// share, and a cpuset child starts without CPUs.
var childHierarchies = []string{"", "freezer", "pids", "cpuacct", "memory"}

// MakeChild makes a cgroup in this one, without limits. On v2 it has the controllers that the parent enables for its
// children, which are none while the parent holds processes (cgroup-v2.rst, "No Internal Process Constraint"; see
// Delegate). Remove removes it. If the name is taken, the error is errdefs.ErrAlreadyExists.
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
	if path := c.File(peak); path != "" {
		u.Memory, _ = readNumber(path, "") // there is no file where it is not counted
	}
	return u, nil
}
