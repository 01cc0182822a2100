// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
)

// resource is one part of a cpuset, named like the file with its list.
type resource string

const (
	cpus resource = "cpuset.cpus"
	mems resource = "cpuset.mems"
)

type node struct {
	dir       string
	requested Set    // what the file of the resource says; empty inherits
	effective Set    // what the tasks of the cgroup have
	partition string // cpuset.cpus.partition: member, root or isolated, with the reason if invalid
}

// assign returns what the destination is to have: what both the source and the destination's parent have. An error,
// always errdefs.ErrFailedPrecondition, says why the destination must keep what it has.
func assign(r resource, source, parent, destination node) (Set, error) {
	wanted := source.effective.Intersect(parent.effective)
	switch {
	case destination.partition != "member":
		return Set{}, fmt.Errorf("%s.partition of %s is %q: must be member to follow a source: %w",
			cpus, destination.dir, destination.partition, errdefs.ErrFailedPrecondition)
	case source.effective.Empty():
		return Set{}, fmt.Errorf("%s.effective of %s is empty: %w", r, source.dir, errdefs.ErrFailedPrecondition)
	case wanted.Empty():
		return Set{}, fmt.Errorf("%s.effective of %s is %q: has nothing of the source's %q: %w",
			r, parent.dir, parent.effective, source.effective, errdefs.ErrFailedPrecondition)
	}
	return wanted, nil
}

// canBeUsed returns an error if nothing that n asks for can be used: what n and cgroups in it then have is not an
// assignment, but what the kernel lends them from n's parent.
func (n node) canBeUsed(r resource) error {
	if !(lists{n.requested, n.effective}.contradict()) {
		return nil
	}
	return fmt.Errorf("%s %q of %s: none of these can be used now: %w",
		r, n.requested, n.dir, errdefs.ErrFailedPrecondition)
}

// observe reads what dir has of the resource. A directory that is gone gives errdefs.ErrNotFound, one without the
// cpuset controller errdefs.ErrFailedPrecondition. The root of the hierarchy, which has no list and is no partition,
// inherits.
func observe(dir string, r resource) (node, error) {
	l, err := readStable(func() (l lists, err error) {
		if l.requested, err = readRequested(dir, r); err == nil {
			l.effective, err = readList(dir, string(r)+".effective")
		}
		return l, err
	})
	switch {
	case cgroup.IsGone(err) && !isDir(dir):
		return node{}, fmt.Errorf("cgroup %s: %w", dir, errdefs.ErrNotFound)
	case cgroup.IsGone(err):
		return node{}, fmt.Errorf("cgroup %s has no cpuset controller: %w", dir, errdefs.ErrFailedPrecondition)
	case errors.Is(err, errChanging):
		return node{}, fmt.Errorf("%s of %s: %w", r, dir, err)
	case err != nil:
		return node{}, err
	}
	n := node{dir: dir, requested: l.requested, effective: l.effective}
	n.partition, err = readLine(dir, string(cpus)+".partition")
	if cgroup.IsGone(err) { // the root, and kernels before 5.0
		n.partition, err = "member", nil
	}
	return n, err
}

// lists are what a cgroup asks for, and what it has.
type lists struct{ requested, effective Set }

// contradict reports whether a cgroup has nothing of what it asks for. That is so while all of it is offline, and seems
// so if somebody writes between two reads.
func (l lists) contradict() bool {
	return !l.requested.Empty() && l.requested.Intersect(l.effective).Empty()
}

// errChanging says that a cgroup was written during each read. The last write triggers another reconciliation.
var errChanging = fmt.Errorf("it changes all the time: %w", errdefs.ErrUnavailable)

// readStable reads until the lists are consistent. A contradiction counts if it persists.
func readStable(read func() (lists, error)) (lists, error) {
	const tries, enough = 12, 3
	var before lists
	same := 0
	for range tries {
		now, err := read()
		if err != nil || !now.contradict() {
			return now, err
		}
		if now != before {
			before, same = now, 0
		}
		if same++; same == enough {
			return now, nil
		}
	}
	return lists{}, errChanging
}

// readRequested reads what a cgroup asks for: nothing if there is no file, as in the root and where the controller is
// off.
func readRequested(dir string, r resource) (Set, error) {
	set, err := readList(dir, string(r))
	if cgroup.IsGone(err) {
		return Set{}, nil
	}
	return set, err
}

func readList(dir, file string) (Set, error) {
	list, err := readLine(dir, file)
	if err != nil {
		return Set{}, err
	}
	set, err := Parse(list)
	if err != nil {
		err = fmt.Errorf("%s of %s: %w", file, dir, err)
	}
	return set, err
}

func readLine(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	return firstLine(b), err
}

func firstLine(text []byte) string {
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	return string(line)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
