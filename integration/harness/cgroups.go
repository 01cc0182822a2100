// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupMode returns which cgroups there are (cgroup-v2.rst, "Mounting").
func CgroupMode() string {
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v2"
	}
	if err := unix.Statfs("/sys/fs/cgroup/unified", &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return "v1, with v2 beside it (hybrid)"
	}
	return "v1"
}

// CgroupRoots lists where cgroup hierarchies are mounted: all of v1's and v2's.
func CgroupRoots() ([]string, error) {
	all, err := cgroupMounts()
	var roots []string
	for _, m := range all {
		roots = append(roots, m.point)
	}
	return roots, err
}

// cgroupMounts lists the mounts of cgroup hierarchies, without those that another mount hides.
func cgroupMounts() ([]mount, error) {
	all, err := mounts()
	return slices.DeleteFunc(all, func(m mount) bool {
		return m.fstype != "cgroup" && m.fstype != "cgroup2" || unix.Access(m.point, unix.F_OK) != nil
	}), err
}

// cgroupsBelow lists the cgroups below path (not path itself) in every hierarchy, children before parents.
func cgroupsBelow(path string) ([]string, error) {
	roots, err := CgroupRoots()
	var found []string
	for _, root := range roots {
		top := filepath.Join(root, path)
		var dirs []string
		err = errors.Join(err, filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went while we looked
			}
			if err == nil && d.IsDir() && name != top {
				dirs = append(dirs, name)
			}
			return err
		}))
		slices.Reverse(dirs)
		found = append(found, dirs...)
	}
	return found, err
}

// removeCgroups kills what is in the cgroups below path and removes them and path itself, in every hierarchy.
func removeCgroups(path string) error {
	groups, err := cgroupsBelow(path)
	for _, dir := range groups {
		for _, thaw := range []struct{ file, value string }{{"freezer.state", "THAWED"}, {"cgroup.freeze", "0"}} {
			// Only one hierarchy has the file.
			_ = os.WriteFile(filepath.Join(dir, thaw.file), []byte(thaw.value), 0)
		}
		for _, pid := range cgroupProcs(dir) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
		}
	}
	roots, e := CgroupRoots()
	err = errors.Join(err, e)
	for _, root := range roots {
		groups = append(groups, filepath.Join(root, path))
	}
	for _, dir := range groups {
		// A killed process leaves its cgroup a little later.
		if e := poll(patience, func() error { return rmdir(dir) }); e != nil {
			// Waiting for those above it would be in vain, too.
			return errors.Join(err, fmt.Errorf("remove cgroup: %w", e))
		}
	}
	return err
}

func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// cgroupProcs lists the processes in one cgroup of one hierarchy; none when it is gone.
func cgroupProcs(dir string) []int {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for line := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(line); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// CgroupFile reads a file of the cgroup at path, as CgroupFilePath finds it.
func CgroupFile(path, v1, v2 string) (string, error) {
	name, err := CgroupFilePath(path, v1, v2)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(name)
	return strings.TrimSpace(string(text)), err
}

// CgroupFilePath finds a file of the cgroup at path, v1's name in whichever hierarchy has it or else v2's name.
func CgroupFilePath(path, v1, v2 string) (string, error) {
	roots, err := CgroupRoots()
	if err != nil {
		return "", err
	}
	for _, file := range []string{v1, v2} {
		if file == "" { // there it has none
			continue
		}
		for _, root := range roots {
			name := filepath.Join(root, path, file)
			if _, err := os.Lstat(name); err == nil {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("cgroup %s: neither %s nor %s: %w", path, v1, v2, fs.ErrNotExist)
}

// DyingCgroups counts the cgroups of the machine that were removed and that the kernel still has, as of the controller
// that has most of them.
func DyingCgroups() (int, error) {
	all, err := cgroupMounts()
	if err != nil {
		return 0, err
	}
	most := 0
	for _, m := range all {
		if m.fstype != "cgroup2" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.point, "cgroup.stat"))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(text), "nr_dying_descendants ")
		if fields := strings.Fields(rest); len(fields) > 0 {
			if n, err := strconv.Atoi(fields[0]); err == nil {
				most = max(most, n)
			}
		}
	}
	// v1 does not say. It counts all, and there is a directory for each that was not removed.
	counts, err := os.ReadFile("/proc/cgroups")
	if errors.Is(err, fs.ErrNotExist) {
		return most, nil
	}
	if err != nil {
		return 0, err
	}
	roots, err := CgroupRoots()
	for line := range strings.Lines(string(counts)) {
		fields := strings.Fields(line) // controller, hierarchy, cgroups, enabled
		i := slices.IndexFunc(roots, func(root string) bool { return len(fields) > 2 && filepath.Base(root) == fields[0] })
		if i < 0 || fields[1] == "0" {
			continue
		}
		n, e := strconv.Atoi(fields[2])
		most, err = max(most, n-directories(roots[i])), errors.Join(err, e)
	}
	return most, err
}

// directories counts the directories at and below root.
func directories(root string) int {
	n := 0
	_ = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error { // what goes meanwhile does not count
		if err == nil && d.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// mount is a line of /proc/self/mountinfo.
type mount struct {
	point  string
	fstype string
}

// mounts lists the mounts of this process's namespace, the latest last.
func mounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	var list []mount
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, fstype := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(fstype) < 1 {
			return nil, fmt.Errorf("mountinfo: line %q", lines.Text())
		}
		list = append(list, mount{point: fields[4], fstype: fstype[0]})
	}
	return list, lines.Err()
}

// mountsBelow lists the mount points below dir, the latest first. What is mounted at dir itself was there before.
func mountsBelow(dir string) ([]string, error) {
	all, err := mounts()
	var points []string
	for _, m := range all {
		if strings.HasPrefix(m.point, dir+"/") {
			points = append(points, m.point)
		}
	}
	slices.Reverse(points)
	return points, err
}

// unmountBelow detaches everything below dir.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	for _, point := range points {
		if e := unix.Unmount(point, unix.MNT_DETACH); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", point, e))
		}
	}
	return err
}

// Mount is mount(2) with an error that says what was mounted where.
func Mount(source, target, kind string, flags uintptr) error {
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %q on %s: %w", source, target, err)
	}
	return nil
}

// LoopbackUp enables the only interface of a new network namespace.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket for lo: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only asked
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("switch lo on: %w", err)
	}
	return nil
}

// NetworkNamespaces counts those of the machine, with those that nothing but a descriptor or the kernel itself holds.
// It reports false where the kernel does not say.
func NetworkNamespaces() (int, bool) {
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "net_namespace" {
			n, err := strconv.Atoi(fields[1])
			return n, err == nil
		}
	}
	return 0, false
}
