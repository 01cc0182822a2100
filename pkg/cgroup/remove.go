// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Remove removes the cgroup in every hierarchy, and the cgroups nested in it. It kills nothing. The kernel refuses for a
// moment after the last process has ended, so Remove tries again until ctx ends; the error then says which processes the
// cgroup holds, and is ctx's cause. A cgroup that is gone is success.
func (c *Cgroup) Remove(ctx context.Context) error {
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		var errs []error
		for _, dir := range c.dirs {
			errs = append(errs, removeTree(dir))
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", c, err)
		}
		if !pause(ctx, wait) {
			pids, _ := c.Procs() // for the message
			return fmt.Errorf("remove cgroup %s: %w, it holds %s: %w", c, err, describe(pids), context.Cause(ctx))
		}
	}
}

// removeTree removes dir after the directories in it. The files in a cgroup need no removing.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if errors.Is(readErr, fs.ErrNotExist) {
		return nil // on a read-only mount the kernel says EROFS before it looks
	}
	if readErr != nil {
		return readErr
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
