// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Remove removes the cgroup in every hierarchy, and the cgroups nested in it. It kills nothing. The kernel refuses for
// a moment after the last process has ended, so Remove tries again until ctx ends; its error then names the processes
// in the cgroup and wraps the cause of ctx.
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
		if !sleep(ctx, wait) {
			pids, _ := c.Procs() // for the message
			return fmt.Errorf("remove cgroup %s: %w, it holds %s: %w", c, err, describe(pids), context.Cause(ctx))
		}
	}
}

// removeTree removes the directory at path after those in it. The files in a cgroup go with it.
func removeTree(path string) error {
	err := unix.Rmdir(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err = walk(path, nil, func(parent node, name string) error {
		return rmdirError(name, unix.Unlinkat(parent.fd(), name, unix.AT_REMOVEDIR))
	})
	if err == nil {
		err = rmdirError(path, unix.Rmdir(path))
	}
	if IsGone(err) { // on a read-only mount the kernel answers EROFS before it looks the name up
		return nil
	}
	return err
}

func rmdirError(name string, err error) error {
	if err != nil {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}
