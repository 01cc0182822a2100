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

	"golang.org/x/sys/unix"
)

// Snapshot is the contents of some control files of a cgroup at one time, by absolute path.
type Snapshot map[string]string

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

// Snapshot reads the files with the given names, which may be patterns of path.Match. It leaves out files that do not
// exist and those that cannot be read.
func (c *Cgroup) Snapshot(names []string) (Snapshot, error) {
	s := Snapshot{}
	for _, name := range names {
		paths, err := c.matching(name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		for _, path := range paths {
			text, err := readSettings(path)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EINVAL) {
				continue // EINVAL: root may open a file that can only be written
			}
			if err != nil {
				return nil, err
			}
			s[path] = text
		}
	}
	return s, nil
}

// matching returns the paths of the files whose names match a pattern. The path of the cgroup is not a pattern: names
// of systemd's units have backslashes.
func (c *Cgroup) matching(pattern string) ([]string, error) {
	file := c.File(pattern)
	if file == "" || !strings.ContainsAny(pattern, `*?[\`) {
		return []string{file}, nil
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if ok, err := filepath.Match(pattern, e.Name()); err != nil {
			return nil, err
		} else if ok {
			paths = append(paths, filepath.Join(filepath.Dir(file), e.Name()))
		}
	}
	return paths, nil
}

// Restore writes the files that differ from the snapshot. The kernel checks some against others, so Restore repeats as
// long as a round restores one more. A cpuset of v2 that was empty gets what its parent has; the two are the same until
// the parent's changes.
func (s Snapshot) Restore() error {
	failed := len(s) + 1
	for {
		var errs []error
		for _, path := range slices.Sorted(maps.Keys(s)) {
			if err := restore(path, s[path]); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			return nil
		}
		if len(errs) >= failed {
			return errors.Join(errs...)
		}
		failed = len(errs)
	}
}

func restore(path, text string) error {
	now, err := readSettings(path)
	if err != nil || now == text {
		return err
	}
	var errs []error
	for _, line := range changes(filepath.Base(path), now, text) {
		errs = append(errs, Write(path, line))
	}
	if now, err = readSettings(path); err != nil || now == text {
		return err
	}
	err = errors.Join(append(errs, fmt.Errorf("%s: is %q, was %q", path, now, text))...)
	if text == "" && errors.Is(err, unix.ENOSPC) {
		return copyParentCPUSet(path)
	}
	return err
}

// copyParentCPUSet gives a cgroup all that its parent has. That is what an empty list means on v2, which the kernel
// does not take while there are tasks (cpuset_write_resmask in kernel/cgroup/cpuset.c).
func copyParentCPUSet(path string) error {
	all, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)+".effective"))
	if err != nil {
		return err
	}
	return Write(path, strings.TrimSpace(string(all)))
}

// readSettings reads the part of a control file that can be written back.
func readSettings(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return settingsIn(data), nil
}

func settingsIn(data []byte) string {
	text := strings.TrimSuffix(string(data), "\n")
	if rest, ok := strings.CutPrefix(text, "oom_kill_disable "); ok {
		text, _, _ = strings.Cut(rest, "\n") // counters follow in memory.oom_control of v1
	}
	return text
}

// changes returns the lines to write to the file with the given name so that its contents become text instead of now. A
// file with settings per device lists those that are not at their default, so devices that only now lists are reset.
func changes(name, now, text string) []string {
	former := map[string]bool{"": true}
	for line := range strings.SplitSeq(text, "\n") {
		former[deviceOf(line)] = true
	}
	var changed []string
	for line := range strings.SplitSeq(now, "\n") {
		if device := deviceOf(line); !former[device] {
			changed = append(changed, reset(name, device, line))
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" || len(changed) == 0 {
			changed = append(changed, line)
		}
	}
	return changed
}

// deviceOf returns the device's number with which a line begins, such as 8:0, or "".
func deviceOf(line string) string {
	device, _, _ := strings.Cut(line, " ")
	if !strings.Contains(device, ":") {
		return ""
	}
	return device
}

// reset returns the line that removes a device's settings. A weight goes back to default (cgroup-v2.rst, io.weight; the
// files of the BFQ scheduler are the same on v1), a limit of v2 to max (io.max), and a limit of v1 to 0
// (cgroup-v1/blkio-controller.rst).
func reset(name, device, line string) string {
	if strings.Contains(name, "weight") {
		return device + " default"
	}
	settings := strings.Fields(line)[1:]
	for i, setting := range settings {
		if key, _, ok := strings.Cut(setting, "="); ok {
			settings[i] = key + "=max"
		} else {
			settings[i] = "0"
		}
	}
	return device + " " + strings.Join(settings, " ")
}
