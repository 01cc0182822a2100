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

// Snapshot is what some control files of a cgroup said at one time.
type Snapshot struct {
	texts map[string]string // by absolute path
}

// File returns the absolute path of the control file with the given name, or "" if the cgroup is not in the hierarchy of
// its controller, which is the part before the first dot.
func (c *Cgroup) File(name string) string {
	controller, _, _ := strings.Cut(name, ".")
	dir := c.Path(controller)
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// Snapshot reads the files with the given names, which may be patterns of path.Match. Files that do not exist and those
// that cannot be read are left out.
func (c *Cgroup) Snapshot(names []string) (*Snapshot, error) {
	s := &Snapshot{texts: map[string]string{}}
	for _, name := range names {
		paths, err := filepath.Glob(c.File(name))
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
			s.texts[path] = text
		}
	}
	return s, nil
}

// Texts returns what each file said, by absolute path.
func (s *Snapshot) Texts() map[string]string { return maps.Clone(s.texts) }

// Restore makes the files say again what they said. Only those that differ are written. The kernel judges some by others,
// so it goes on as long as a round brings one of them back. A cpuset of v2 that was empty gets what its parent has, which is
// the same until the parent's changes.
func (s *Snapshot) Restore() error {
	left := len(s.texts) + 1
	for {
		var errs []error
		for _, path := range slices.Sorted(maps.Keys(s.texts)) {
			if err := restore(path, s.texts[path]); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			return nil
		}
		if len(errs) >= left {
			return errors.Join(errs...)
		}
		left = len(errs)
	}
}

func restore(path, text string) error {
	now, err := readSettings(path)
	if err != nil || now == text {
		return err
	}
	var errs []error
	for _, line := range changes(filepath.Base(path), now, text) {
		if err := writeLine(path, line); err != nil {
			errs = append(errs, err)
		}
	}
	if now, err = readSettings(path); err != nil || now == text {
		return err
	}
	err = errors.Join(append(errs, fmt.Errorf("%s: says %q, said %q", path, now, text))...)
	if text == "" && errors.Is(err, unix.ENOSPC) {
		return unconfine(path)
	}
	return err
}

// unconfine gives a cgroup all that its parent has. That is what an empty list stands for on v2, where the kernel takes
// none while there are tasks (cpuset_write_resmask in kernel/cgroup/cpuset.c).
func unconfine(path string) error {
	all, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(path)+".effective"))
	if err != nil {
		return err
	}
	return writeLine(path, strings.TrimSpace(string(all)))
}

// readSettings reads what can be written to a control file.
func readSettings(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(string(data), "\n")
	if rest, ok := strings.CutPrefix(text, "oom_kill_disable "); ok {
		// memory.oom_control of v1 goes on with counters.
		text, _, _ = strings.Cut(rest, "\n")
	}
	return text, nil
}

// writeLine writes line as one write, as control files want it. It does not make a file.
func writeLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteString(line + "\n"); err != nil {
		err = fmt.Errorf("write %q: %w", line, err)
	}
	return errors.Join(err, f.Close())
}

// changes are the lines that make a file with the given name that says now say text. A file with settings of several devices has a line for
// each of those that are not at their default: the ones that are only in now go back to it.
func changes(name, now, text string) []string {
	former := lines(text)
	var changed []string
	for key, line := range lines(now) {
		if _, ok := former[key]; !ok && key != whole {
			changed = append(changed, reset(name, key, line))
		}
	}
	slices.Sort(changed)
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" || len(changed) == 0 {
			changed = append(changed, line)
		}
	}
	return changed
}

// whole is the key of a line that does not begin with a device's number.
const whole = ""

// lines are those of text by the device's number with which they begin, such as 8:0.
func lines(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.SplitSeq(text, "\n") {
		key, _, _ := strings.Cut(line, " ")
		if !strings.Contains(key, ":") {
			key = whole
		}
		found[key] = line
	}
	return found
}

// reset is the line that takes a device's settings away: a weight goes to default (cgroup-v2.rst, io.weight; the BFQ
// scheduler's files are the same on v1), limits of v2 to max (io.max), and one of v1 to 0 (cgroup-v1/blkio-controller.rst).
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
