// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup hides the differences between cgroup v1, hybrid and v2: processes, kill, freeze, removal, OOM kills.
// A Cgroup caches nothing and is safe for concurrent use.
//
// The managers of containerd/cgroups v3 walk by paths and freeze without a bound, so nested cgroups could block them.
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

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Cgroup is the cgroup of one container: one directory on v2, one in each hierarchy on v1.
type Cgroup struct {
	paths   map[string]string
	dirs    []string // the distinct directories, in a fixed order
	unified bool
}

// New returns the cgroup with the paths of libcontainer's State.CgroupPaths: by controller on v1, under the key "" on
// v2, both on hybrid.
func New(paths map[string]string) *Cgroup {
	c := &Cgroup{paths: maps.Clone(paths), dirs: slices.Sorted(maps.Values(paths))}
	c.dirs = slices.Compact(c.dirs) // cpu and cpuacct often share a hierarchy
	c.dirs = slices.DeleteFunc(c.dirs, func(dir string) bool { return dir == "" })
	c.unified = len(paths) == 1 && paths[""] != ""
	return c
}

// Paths returns the argument of New.
func (c *Cgroup) Paths() map[string]string { return maps.Clone(c.paths) }

// Unified reports whether the cgroup is on v2, where all controllers share one directory.
func (c *Cgroup) Unified() bool { return c.unified }

// Path returns the directory with the files of controller, or "" if there is none. On hybrid "" names the v2 hierarchy.
func (c *Cgroup) Path(controller string) string {
	if c.unified {
		return c.paths[""]
	}
	return c.paths[controller]
}

// File returns the path of a control file, or "" if the cgroup is not in the hierarchy of its controller.
func (c *Cgroup) File(name string) string {
	controller, _, _ := strings.Cut(name, ".")
	if dir := c.Path(controller); dir != "" {
		return filepath.Join(dir, name)
	}
	return ""
}

// IsNone reports whether the container has no cgroup.
func (c *Cgroup) IsNone() bool { return len(c.dirs) == 0 }

// Exists reports whether any directory of the cgroup exists.
func (c *Cgroup) Exists() bool { return slices.ContainsFunc(c.dirs, exists) }

// String returns the path of the cgroup for messages: on v1 that of the memory controller, or else any.
func (c *Cgroup) String() string {
	dirs := append(slices.Clip(c.dirs), "(no cgroup)")
	return cmp.Or(c.Path("memory"), dirs[0])
}

// IsGone reports whether err means that the cgroup was removed. Its open files return ENODEV.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func classify(err error) error {
	if IsGone(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return err
}

// Write writes a line to a control file, in one write(2) as the kernel requires. It does not create the file.
func Write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteString(text + "\n"); err != nil {
		err = fmt.Errorf("%w (value %q)", err, text)
	}
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// readFile reads a small control file. os.ReadFile would also have Go's poller watch the file, and read until its end.
func readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	text := make([]byte, 4096)
	n, err := unix.Read(fd, text)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return text[:n], nil
}

// readNumber reads the number in a control file or, unless key is empty, on the line that begins with key. It is
// math.MaxUint64 for the word max.
func readNumber(path, key string) (uint64, error) {
	text, err := readFile(path)
	if err != nil {
		return 0, err
	}
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
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("%s: has no line %q: %w", path, key, errdefs.ErrNotImplemented)
}

// noLimitV1 is the number of v1 for no limit, with pages of up to 64 KiB: the largest page counter, in bytes.
const noLimitV1 = math.MaxInt64 &^ (64<<10 - 1)

// MemoryLimit returns the lowest memory limit of the cgroup and its ancestors in bytes, math.MaxUint64 for none.
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

const (
	// MaxDepth limits nested cgroups of a container. A kubelet and systemd in a container need about eleven levels.
	MaxDepth = 32
	// DepthFile limits how deep cgroups are nested in one (cgroup-v2.rst, "Core Interface Files").
	DepthFile = "cgroup.max.depth"
)

// LimitDepth sets DepthFile to MaxDepth unless it has a limit. A kernel without the file gives errdefs.ErrNotFound. v1
// has no such limit.
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
