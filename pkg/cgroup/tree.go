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
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// walk calls visit for dir and each directory below it, parents first, and leave for each directory below it, children
// first. Both may be nil. It skips nested cgroups that are gone.
//
// A container can nest cgroups deeper than PATH_MAX, so the paths begin at a descriptor and are valid during the call
// only. Two descriptors are open at any depth.
func walk(dir string, visit, leave func(dir string) error) error {
	here, err := os.Open(dir)
	if err != nil {
		return err
	}
	here, err = walkFrom(here, visit, leave)
	_ = here.Close() // opened for reading
	return err
}

// walkFrom walks from the directory here. It closes here and returns the directory opened anew, if it has children: the
// way back from a child is "..", since a cgroup never gets another parent.
func walkFrom(here *os.File, visit, leave func(dir string) error) (*os.File, error) {
	if visit != nil {
		if err := visit(pathOf(here)); err != nil {
			return here, err
		}
	}
	names, err := children(here)
	if err != nil {
		return here, err
	}
	for _, name := range names {
		child, err := os.Open(pathOf(here) + "/" + name)
		if IsGone(err) {
			continue
		}
		if err != nil {
			return here, err
		}
		_ = here.Close()
		if child, err = walkFrom(child, visit, leave); err != nil && !IsGone(err) {
			return child, err
		}
		if here, err = os.Open(pathOf(child) + "/.."); err != nil {
			return child, err
		}
		_ = child.Close()
		if leave == nil {
			continue
		}
		if err := leave(pathOf(here) + "/" + name); err != nil && !IsGone(err) {
			return here, err
		}
	}
	return here, nil
}

func pathOf(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) }

func children(dir *os.File) (names []string, err error) {
	// The link count includes subdirectories.
	var s unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &s); err == nil && s.Nlink == 2 {
		return nil, nil
	}
	entries, err := dir.ReadDir(-1)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

const (
	// freezeTimeout bounds freeze, which a process that sleeps in the kernel may keep from completing.
	freezeTimeout = 100 * time.Millisecond
	firstPoll     = time.Millisecond
	lastPoll      = 50 * time.Millisecond
)

// freezer returns the freezer's file, "" for none, and its values (cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst).
func (c *Cgroup) freezer() (file, frozen, thawed string) {
	if c.unified {
		return c.File("cgroup.freeze"), "1", "0"
	}
	return c.File("freezer.state"), "FROZEN", "THAWED"
}

// freeze freezes the cgroup and waits up to freezeTimeout, the end of which is no error.
func (c *Cgroup) freeze(ctx context.Context) error {
	file, frozen, _ := c.freezer()
	state, done := file, frozen
	if c.unified {
		state, done = c.File("cgroup.events"), "frozen 1"
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		// v1 stays at FREEZING when processes appeared meanwhile, until the file is written again.
		if err := Write(file, frozen); err != nil {
			return err
		}
		b, err := os.ReadFile(state)
		if err != nil || strings.Contains(string(b), done) || !sleep(ctx, wait) {
			return err
		}
	}
}

// Thaw thaws the cgroup and those nested in it, whoever froze them.
func (c *Cgroup) Thaw() error {
	file, _, thawed := c.freezer()
	if file == "" {
		return nil
	}
	err := walk(filepath.Dir(file), func(dir string) error {
		return Write(filepath.Join(dir, filepath.Base(file)), thawed)
	}, nil)
	if err != nil && !IsGone(err) {
		return fmt.Errorf("thaw cgroup %s: %w", c, err)
	}
	return nil
}

// AwaitThaw waits while the cgroup or an ancestor is frozen on v2, until ctx ends: a process started there would not
// run. cgroup.events shows a freeze only once all processes are stopped.
func (c *Cgroup) AwaitThaw(ctx context.Context) error {
	wait := firstPoll
	for dir := c.Path(""); c.unified; {
		frozen, err := readNumber(filepath.Join(dir, "cgroup.freeze"), "")
		switch {
		case err != nil: // the root has none
			return nil
		case frozen == 0:
			dir = filepath.Dir(dir)
			continue
		case !sleep(ctx, wait):
			return fmt.Errorf("cgroup %s is frozen: %w", dir, context.Cause(ctx))
		}
		dir, wait = c.Path(""), min(2*wait, lastPoll)
	}
	return nil
}

// sleep waits for d and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Remove removes the cgroup and those nested in it, and kills nothing. The kernel answers EBUSY for a moment after the
// last exit, so Remove tries again until ctx ends; its error wraps the cause of ctx.
func (c *Cgroup) Remove(ctx context.Context) error {
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		var err error
		for _, dir := range c.dirs {
			err = errors.Join(err, removeTree(dir))
		}
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

func removeTree(path string) error {
	err := rmdir(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = walk(path, nil, rmdir); err == nil {
		err = rmdir(path)
	}
	if IsGone(err) { // on a read-only mount the kernel answers EROFS before it looks the name up
		return nil
	}
	return err
}

func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
