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
	partition string // cpuset.cpus.partition: member, or root or isolated, if invalid with the reason
	nested    []node // the cgroups in it, with requested alone
}

type write struct {
	resource resource
	dir      string
	set      Set
}

// apply does the write, in one call since the kernel takes each call as a whole list. A cgroup that is gone is
// errdefs.ErrNotFound.
func (w write) apply() error {
	err := cgroup.Write(filepath.Join(w.dir, string(w.resource)), w.set.String())
	if cgroup.IsGone(err) {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("write %q to %s of %s: %w", w.set, w.resource, w.dir, err)
	}
	return nil
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
	case lists{source.requested, source.effective}.contradict():
		return Set{}, fmt.Errorf("%s %q of %s: none of these can be used now: %w",
			r, source.requested, source.dir, errdefs.ErrFailedPrecondition)
	case wanted.Empty():
		return Set{}, fmt.Errorf("%s.effective of %s is %q: has nothing of the source's %q: %w",
			r, parent.dir, parent.effective, source.effective, errdefs.ErrFailedPrecondition)
	}
	return wanted, nil
}

// plan returns the writes, in order, that give the destination the wanted set, of which its parent has all.
//
// A nested cgroup that is not within wanted is narrowed, the deepest first: kernels before 5.17 answer EBUSY when a
// child asks for more than what is written (validate_change in kernel/cgroup/cpuset.c). Nothing has to grow beforehand,
// since on v2 a child may ask for more than its parent has. For newer kernels, which mask nested cgroups, leave nested
// empty.
func plan(r resource, destination node, wanted Set) []write {
	if destination.requested == wanted {
		return nil
	}
	var writes []write
	for _, n := range destination.nested {
		writes = append(writes, narrow(r, n, wanted)...)
	}
	return append(writes, write{r, destination.dir, wanted})
}

// narrow returns the writes that bring a cgroup and those nested in it within bound. A cgroup that asks for nothing
// within it gets all of it, since the kernel lets no list become empty while there are tasks.
func narrow(r resource, n node, bound Set) []write {
	if n.requested.Subset(bound) {
		return nil
	}
	if within := n.requested.Intersect(bound); !within.Empty() {
		bound = within
	}
	return plan(r, n, bound)
}

// observe reads what dir has of the resource. A directory that is gone is errdefs.ErrNotFound, one without the cpuset
// controller errdefs.ErrFailedPrecondition. The root of the hierarchy, which has no list and is no partition, inherits.
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

// readStable reads until the lists are consistent. A contradiction counts when it stays the same.
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

// observeNested returns the cgroups in dir, with requested alone. It leaves out those that go meanwhile.
func observeNested(dir string, r resource) ([]node, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !cgroup.IsGone(err) {
		return nil, err
	}
	var nested []node
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		n := node{dir: filepath.Join(dir, e.Name())}
		if n.requested, err = readRequested(n.dir, r); err != nil {
			return nil, err
		}
		if n.nested, err = observeNested(n.dir, r); err != nil {
			return nil, err
		}
		nested = append(nested, n)
	}
	return nested, nil
}

// readRequested reads what a cgroup asks for: nothing without a file, as in the root and where the controller is off.
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
	line, _, _ := bytes.Cut(b, []byte{'\n'})
	return string(line), err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
