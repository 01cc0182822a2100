// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
)

// Request asks that a container follow a source.
type Request struct {
	ID     string
	Source string // Parent, or the path of a cgroup below the root of the hierarchy
	Dir    string // the absolute path of the container's own cgroup
	Mems   bool   // follow the memory nodes as well

	// Apply, unless nil, gets each new assignment after the write, for other writers such as systemd, again after an
	// error. mems is empty unless Mems is set. It must not call the Reconciler.
	Apply func(ctx context.Context, cpus, mems Set) error
}

// State is the state of a container, for display.
type State struct {
	Source     string // the absolute path of the source
	CPUs, Mems Set    // the last assignment; Mems only if the container follows them
	Writes     int    // writes to control files that succeeded
	Pinned     bool
	Err        error // why the last assignment is kept
}

// follower is a container that follows. The Reconciler's cgroupLock guards it.
type follower struct {
	Request
	state   State
	own     uint64 // inode of the container's cgroup
	applied *State // the last assignment that Apply took
}

func (f *follower) reconcile() error {
	// A container that has exited follows until it is deleted, and its cgroup may be another container's by then.
	if inode(f.Dir) != f.own {
		return fmt.Errorf("cgroup %s, which was made again: %w", f.Dir, errdefs.ErrNotFound)
	}
	err := f.follow(cpus, &f.state.CPUs)
	if f.Mems {
		err = errors.Join(err, f.follow(mems, &f.state.Mems))
	}
	return err
}

// follow reconciles one resource and stores the assignment in last.
func (f *follower) follow(r resource, last *Set) error {
	source, err := observe(f.state.Source, r)
	if err != nil {
		return err
	}
	parent, err := observe(filepath.Dir(f.Dir), r)
	if err != nil {
		return err
	}
	destination, err := observe(f.Dir, r)
	if err != nil {
		return err
	}
	wanted, err := assign(r, source, parent)
	if err != nil {
		return err
	}
	if destination.requested != wanted {
		if err := f.write(r, wanted); err != nil {
			return err
		}
	}
	*last = wanted
	return nil
}

func (f *follower) write(r resource, set Set) error {
	err := cgroup.Write(filepath.Join(f.Dir, string(r)), set.String())
	if cgroup.IsGone(err) {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("write %q to %s of %s: %w", set, r, f.Dir, err)
	}
	f.state.Writes++
	f.log().WithField(string(r), set).WithField("cgroup", f.Dir).Debug("cpuset follows its source")
	return nil
}

// notifyApplied calls Apply with the assignment that reconcile wrote, unless Apply took it already.
func (f *follower) notifyApplied(ctx context.Context) error {
	if f.isApplied() || f.Apply == nil {
		return nil
	}
	if err := f.Apply(ctx, f.state.CPUs, f.state.Mems); err != nil {
		return fmt.Errorf("apply cpus %q, mems %q: %w", f.state.CPUs, f.state.Mems, err)
	}
	f.applied = new(f.state)
	return nil
}

func (f *follower) isApplied() bool {
	return f.applied != nil && f.applied.CPUs == f.state.CPUs && f.applied.Mems == f.state.Mems
}

// recordResult keeps and, if it differs from the last one, logs the result of a reconciliation.
func (f *follower) recordResult(err error) {
	before := f.state.Err
	f.state.Err = err
	switch entry := f.log().WithField("cpus", f.state.CPUs); {
	case err == nil && before != nil:
		entry.Info("cpuset follows its source again")
	case err == nil, before != nil && err.Error() == before.Error():
	case !isDir(f.Dir): // the container is about to be removed
		entry.WithError(err).Debug("cpuset is kept")
	default:
		entry.WithError(err).Warn("cpuset is kept")
	}
}

func (f *follower) log() *log.Entry {
	return log.L.WithFields(log.Fields{"container": f.ID, "source": f.state.Source, "writes": f.state.Writes})
}

// watched returns the files that determine the assignment, and the directory in which the source, or its ancestor that
// is gone, may be made.
func (f *follower) watched(root string) (files []string, dir string) {
	for _, end := range []string{f.state.Source, f.Dir} {
		for dir := end; below(dir, root); dir = filepath.Dir(dir) {
			files = append(files, filepath.Join(dir, string(cpus)))
			if f.Mems {
				files = append(files, filepath.Join(dir, string(mems)))
			}
		}
	}
	dir = filepath.Dir(f.state.Source)
	for below(dir, root) && !isDir(dir) {
		dir = filepath.Dir(dir)
	}
	return files, dir
}

// inode returns the inode number of a directory, or 0 if there is none.
func inode(dir string) uint64 {
	var s unix.Stat_t
	_ = unix.Stat(dir, &s) // leaves 0 when it fails
	return s.Ino
}

// Parent as a source is the parent of the container's cgroup, which is the pod's.
const Parent = "parent"

// locate returns the path of a source for the destination dir. A source that does not exist gives errdefs.ErrNotFound,
// one that is not allowed errdefs.ErrInvalidArgument.
func locate(root, source, dir string) (string, error) {
	refuse := func(why string) (string, error) {
		return "", fmt.Errorf("cpuset source %q: %s: %w", source, why, errdefs.ErrInvalidArgument)
	}
	path := filepath.Join(root, source)
	switch {
	case !below(dir, root):
		return "", fmt.Errorf("cgroup %q: must be below %s: %w", dir, root, errdefs.ErrInvalidArgument)
	case source == Parent:
		return filepath.Dir(dir), nil
	case !below(path, root):
		return refuse("must be " + Parent + " or a path below " + root)
	case path == dir || below(path, dir):
		return refuse("must not be the container's own cgroup or in it")
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("cpuset source %q: cgroup %s: %w", source, path, errdefs.ErrNotFound)
	case err != nil || !info.IsDir():
		return refuse("must be a directory")
	}
	return path, nil
}

// below reports whether the clean path is inside dir.
func below(path, dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }

// resource is one part of a cpuset, named like the file with its list.
type resource string

const (
	cpus resource = "cpuset.cpus"
	mems resource = "cpuset.mems"
)

type node struct {
	dir       string
	requested Set // what the file of the resource says; empty inherits
	effective Set // what the tasks of the cgroup have
}

// usable reports whether a cgroup has some of its list. Otherwise the kernel lends it the list of its parent, or
// somebody wrote between two reads.
func (n node) usable() bool {
	return n.requested.Empty() || !n.requested.Intersect(n.effective).Empty()
}

// assign returns the intersection of the source and the container's parent. errdefs.ErrFailedPrecondition says why the
// container must keep its list.
func assign(r resource, source, parent node) (Set, error) {
	wanted := source.effective.Intersect(parent.effective)
	switch {
	case !source.usable():
		return Set{}, fmt.Errorf("%s %q of %s: none of these can be used now: %w",
			r, source.requested, source.dir, errdefs.ErrFailedPrecondition)
	case wanted.Empty():
		return Set{}, fmt.Errorf("%s.effective of %s is %q: has nothing of the source's %q: %w",
			r, parent.dir, parent.effective, source.effective, errdefs.ErrFailedPrecondition)
	}
	return wanted, nil
}

// observe reads one resource of dir. A directory that is gone gives errdefs.ErrNotFound, one without the cpuset
// controller errdefs.ErrFailedPrecondition. The root has no list.
func observe(dir string, r resource) (node, error) {
	const tries = 4 // somebody may write between two reads
	n := node{dir: dir}
	var err error
	for range tries {
		if n.requested, err = readList(dir, string(r)); err == nil || cgroup.IsGone(err) {
			n.effective, err = readList(dir, string(r)+".effective")
		}
		if err != nil || n.usable() {
			break
		}
	}
	switch {
	case cgroup.IsGone(err) && !isDir(dir):
		err = fmt.Errorf("cgroup %s: %w", dir, errdefs.ErrNotFound)
	case cgroup.IsGone(err):
		err = fmt.Errorf("cgroup %s has no cpuset controller: %w", dir, errdefs.ErrFailedPrecondition)
	}
	return n, err
}

func readList(dir, file string) (Set, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return Set{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	set, err := Parse(line)
	if err != nil {
		err = fmt.Errorf("%s of %s: %w", file, dir, err)
	}
	return set, err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
