// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// groups returns the cgroups of that name at the top of each hierarchy.
func groups(name string) ([]string, error) {
	var info unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &info); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", cgroupRoot, err)
	}
	if info.Type == unix.CGROUP2_SUPER_MAGIC {
		return filepath.Glob(filepath.Join(cgroupRoot, name))
	}
	return filepath.Glob(filepath.Join(cgroupRoot, "*", name))
}

// takeCgroups makes sure that nobody else uses the suite's cgroups, which namespaces do not separate. The function it
// returns removes them; containerd's, which the suite makes for a shim, only when the suite did.
func takeCgroups() (release func() error, err error) {
	lock, err := os.Open(cgroupRoot)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s, is another run going on: %w", cgroupRoot, err), lock.Close())
	}
	testing, err := groups("testing")
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	for _, dir := range testing {
		if pids := members(dir); pids != "" {
			err := fmt.Errorf("cgroup %s has processes, of an earlier run or of a containerd with the namespace testing: %s",
				dir, pids)
			return nil, errors.Join(err, lock.Close())
		}
	}
	before, err := groups("containerd")
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return func() error {
		testing, err := groups("testing")
		after, more := groups("containerd")
		err = errors.Join(err, more)
		for _, dir := range append(testing, after...) {
			if !slices.Contains(before, dir) {
				err = errors.Join(err, remove(dir))
			}
		}
		return errors.Join(err, lock.Close())
	}, nil
}

// members lists the processes in dir and below.
func members(dir string) string {
	var pids []string
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == "cgroup.procs" {
			data, _ := os.ReadFile(path) // a group that is gone has none
			pids = append(pids, strings.Fields(string(data))...)
		}
		return nil
	})
	return strings.Join(pids, " ")
}

// remove removes the cgroup with those below it, which must be empty.
func remove(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, unix.Rmdir(d))
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
