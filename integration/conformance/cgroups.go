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

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// groups returns the cgroups of a name at the top of each hierarchy.
func groups(name string) ([]string, error) {
	var found []string
	roots, err := harness.CgroupRoots()
	for _, root := range roots {
		if dir := filepath.Join(root, name); isDir(dir) {
			found = append(found, dir)
		}
	}
	return found, err
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// takeCgroups makes sure that nobody else uses the suite's cgroups, which namespaces do not separate. The function it
// returns removes them; containerd's, which the suite makes for a shim, only when the suite did.
func takeCgroups() (release func() error, err error) {
	lock, err := os.Open("/sys/fs/cgroup")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s, is another run going on: %w", lock.Name(), err), lock.Close())
	}
	if used := harness.InCgroup("/testing"); len(used) > 0 {
		err := fmt.Errorf(
			"cgroup testing has processes, of an earlier run or of a containerd with the namespace testing: %v", used)
		return nil, errors.Join(err, lock.Close())
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
