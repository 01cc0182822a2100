// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// node is the open directory of a cgroup in one hierarchy. A container that may make cgroups can nest them deeper than
// a path can name (PATH_MAX), so nested ones are opened from one directory to the next.
type node struct {
	*os.File // its name is for messages only
}

// walk calls visit for the directory at path and for each directory below it, parents first. After all children of a
// nested directory were visited, walk calls leave with the parent and the name of the directory. Both may be nil.
// Nested cgroups come and go: a cgroup that goes during the visit is skipped. Only path itself being gone is an error.
//
// Three descriptors are open at a time, at any depth. The way back is "..", since a cgroup never gets another parent.
func walk(path string, visit func(node) error, leave func(parent node, name string) error) error {
	f, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	here := node{f}
	defer func() { _ = here.Close() }() // whichever is open by then; all are opened for reading
	children, err := here.visit(visit)
	if err != nil {
		return err
	}
	type level struct {
		name     string   // of a directory on the way from path to here
		children []string // those in it that are still to be visited
	}
	way := []level{{path, children}}
	for {
		last := &way[len(way)-1]
		if n := len(last.children); n > 0 {
			name := last.children[n-1]
			last.children = last.children[:n-1]
			child, children, err := here.enter(name, visit)
			switch {
			case err == nil:
				_ = here.Close()
				here = child
				way = append(way, level{name, children})
			case !IsGone(err):
				return err
			}
			continue
		}
		way = way[:len(way)-1]
		if len(way) == 0 {
			return nil
		}
		parent, err := here.openDir("..")
		if err != nil {
			return err
		}
		_ = here.Close()
		here = parent
		if leave == nil {
			continue
		}
		if err := leave(here, last.name); err != nil && !IsGone(err) {
			return err
		}
	}
}

func (n node) enter(name string, visit func(node) error) (node, []string, error) {
	child, err := n.openDir(name)
	if err != nil {
		return node{}, nil, err
	}
	children, err := child.visit(visit)
	if err != nil {
		_ = child.Close()
		return node{}, nil, err
	}
	return child, children, nil
}

func (n node) visit(f func(node) error) ([]string, error) {
	if f != nil {
		if err := f(n); err != nil {
			return nil, err
		}
	}
	// The link count includes subdirectories, as in most file systems. Most containers have none, and this saves reading
	// a directory of forty files.
	if s, err := n.stat(); err == nil && s.Nlink == 2 {
		return nil, nil
	}
	entries, err := n.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (n node) fd() int { return int(n.Fd()) }

func (n node) stat() (s unix.Stat_t, err error) {
	err = unix.Fstat(n.fd(), &s)
	return s, err
}

func (n node) openDir(name string) (node, error) {
	f, err := n.open(name, unix.O_DIRECTORY)
	return node{f}, err
}

func (n node) open(name string, flags int) (*os.File, error) {
	label := name
	if flags&unix.O_DIRECTORY == 0 {
		label = filepath.Join(n.Name(), name)
	}
	for {
		fd, err := unix.Openat(n.fd(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), label), nil
		case unix.EINTR:
		default:
			return nil, &os.PathError{Op: "open", Path: label, Err: err}
		}
	}
}

func (n node) read(file string) ([]byte, error) {
	f, err := n.open(file, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	return io.ReadAll(f)
}

func (n node) write(file, text string) error {
	f, err := n.open(file, unix.O_WRONLY)
	if err != nil {
		return err
	}
	return writeAndClose(f, text)
}

const (
	// freezeTimeout bounds the wait for a cgroup to freeze. Freezing only helps against processes that fork while they are
	// killed, and a process that sleeps in the kernel may keep it from completing.
	freezeTimeout = 100 * time.Millisecond

	// firstPoll and lastPoll bound the wait between two polls of a state that the kernel does not announce.
	firstPoll = time.Millisecond
	lastPoll  = 50 * time.Millisecond
)

// freezer describes the files that stop and continue all processes of a cgroup: freezer.state on v1
// (cgroup-v1/freezer-subsystem.rst), cgroup.freeze and cgroup.events on v2 (cgroup-v2.rst, "Core Interface Files").
type freezer struct {
	dir            string
	file           string
	frozen, thawed string // what is written to file
	stateFile      string
	done           string // what stateFile contains once every process is stopped
}

// freezer returns the cgroup's freezer, whose dir is "" on a machine without one.
func (c *Cgroup) freezer() freezer {
	if c.unified {
		return freezer{c.Path(""), "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"}
	}
	return freezer{c.Path("freezer"), "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"}
}

// requested reports whether somebody asked for a freeze and nobody has thawed since. The cgroup may not be frozen yet.
func (f freezer) requested() bool {
	if f.dir == "" {
		return false
	}
	b, err := os.ReadFile(filepath.Join(f.dir, f.file))
	return err == nil && !strings.HasPrefix(string(b), f.thawed)
}

// freeze stops all processes and waits until they are stopped, at most for freezeTimeout. A timeout is no error: the
// processes that are stopped by then stay stopped. thaw continues them, even after an error. It opens no file, since
// descriptors may be used up by then, and succeeds for a cgroup that is gone.
func (f freezer) freeze(ctx context.Context) (thaw func() error, err error) {
	nothing := func() error { return nil }
	if f.dir == "" {
		return nothing, errors.New("no freezer controller")
	}
	file, err := os.OpenFile(filepath.Join(f.dir, f.file), os.O_WRONLY, 0)
	if err != nil {
		return nothing, err
	}
	thaw = func() error {
		if _, err := file.WriteAt([]byte(f.thawed), 0); err != nil && !IsGone(err) {
			return errors.Join(err, file.Close())
		}
		return file.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, freezeTimeout)
	defer cancel()
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		// v1 stays at FREEZING when processes appeared meanwhile, until the file is written again.
		if _, err := file.WriteAt([]byte(f.frozen), 0); err != nil {
			return thaw, err
		}
		b, err := os.ReadFile(filepath.Join(f.dir, f.stateFile))
		if err != nil || strings.Contains(string(b), f.done) || !sleep(ctx, wait) {
			return thaw, err
		}
	}
}

// Thaw continues all processes, whoever froze them, including those in nested cgroups, which may have been frozen on
// their own.
func (c *Cgroup) Thaw() error {
	f := c.freezer()
	if f.dir == "" {
		return nil
	}
	err := walk(f.dir, func(n node) error {
		return n.write(f.file, f.thawed)
	}, nil)
	if err != nil && !IsGone(err) {
		return fmt.Errorf("thaw cgroup %s: %w", f.dir, err)
	}
	return nil
}

// AwaitThaw waits while the cgroup or an ancestor is frozen on v2, until ctx ends. A process that is started in a
// frozen cgroup does not run.
func (c *Cgroup) AwaitThaw(ctx context.Context) error {
	for wait := firstPoll; c.unified; wait = min(2*wait, lastPoll) {
		frozen := freezing(c.Path(""))
		if frozen == "" {
			return nil
		}
		if !sleep(ctx, wait) {
			return fmt.Errorf("cgroup %s is frozen: %w", frozen, context.Cause(ctx))
		}
	}
	return nil
}

// freezing returns dir or its nearest ancestor on v2 with a freeze requested, or "". It reads cgroup.freeze:
// cgroup.events shows a freeze only once all processes are stopped, but a new process is stopped before. A file that
// cannot be read counts as not frozen.
func freezing(dir string) string {
	for ; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")) // the root has none
		if err != nil {
			return ""
		}
		if strings.HasPrefix(string(text), "1") {
			return dir
		}
	}
}

// sleep waits for d and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Remove removes the cgroup in every hierarchy, and the cgroups nested in it. It kills nothing. The kernel refuses for
// a moment after the last process has ended, so Remove tries again until ctx ends; its error then names the processes
// in the cgroup and wraps the cause of ctx.
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

// removeTree removes the directory at path after those in it. The files in a cgroup go with it.
func removeTree(path string) error {
	err := rmdir(unix.AT_FDCWD, path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err = walk(path, nil, func(parent node, name string) error { return rmdir(parent.fd(), name) })
	if err == nil {
		err = rmdir(unix.AT_FDCWD, path)
	}
	if IsGone(err) { // on a read-only mount the kernel answers EROFS before it looks the name up
		return nil
	}
	return err
}

func rmdir(dir int, name string) error {
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}
