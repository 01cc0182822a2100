// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
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

// CgroupRoots lists where cgroup hierarchies are mounted, all of v1's and v2's, without those that another mount hides.
func CgroupRoots() ([]string, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2" || unix.Access(m.Mountpoint, unix.F_OK) != nil, false
	})
	var roots []string
	for _, m := range all {
		roots = append(roots, m.Mountpoint)
	}
	return roots, err
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

// RemoveCgroups kills what is in the cgroups below path and removes them and path itself, in every hierarchy.
func RemoveCgroups(path string) error {
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

// mountsBelow lists the mount points below dir, the latest first. What is mounted at dir itself was there before.
func mountsBelow(dir string) ([]string, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	var points []string
	for _, m := range slices.Backward(all) {
		points = append(points, m.Mountpoint)
	}
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

// Frozen reports whether the cgroup of a process is.
func Frozen(pid int) (bool, error) {
	text, err := fileOf(pid, "freezer", "freezer.state", "cgroup.events")
	return strings.Contains(text, "FROZEN") || strings.Contains(text, "frozen 1"), err
}

// MemoryOf returns the memory of the cgroup of a process, in bytes.
func MemoryOf(pid int) (uint64, error) {
	text, err := fileOf(pid, "memory", "memory.usage_in_bytes", "memory.current")
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(text), 10, 64)
}

// fileOf reads a file of the cgroup of a process, with the name that it has on v1 or on v2.
func fileOf(pid int, controller, v1, v2 string) (string, error) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(list)) { // see cgroups(7): the number, the controllers, the path
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		file := filepath.Join("/sys/fs/cgroup", controller, f[2], v1)
		if f[0] == "0" && CgroupMode() == "v2" {
			file = filepath.Join("/sys/fs/cgroup", f[2], v2)
		} else if !slices.Contains(strings.Split(f[1], ","), controller) {
			continue
		}
		text, err := os.ReadFile(file)
		return string(text), err
	}
	return "", fmt.Errorf("process %d is in no cgroup of %s", pid, controller)
}
