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
	dir       string // of a nested one only its name, since its path may be longer than the kernel takes
	inode     uint64 // of a nested one
	requested Set    // what the file of the resource says; empty inherits
	effective Set    // what the tasks of the cgroup have
	partition string // cpuset.cpus.partition: member, root or isolated, with the reason if invalid
	nested    []node // the cgroups in it, with only requested
}

type write struct {
	resource resource
	dir      string // as node has it
	inode    uint64 // of a nested cgroup; else 0
	set      Set
}

// apply does the write to a cgroup that is not nested, in one call since the kernel takes each call as a whole list. A
// cgroup that is gone gives errdefs.ErrNotFound.
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

// applyNested is apply for a nested cgroup. If that is gone, the error says so (cgroup.IsGone).
func (w write) applyNested(n cgroup.Nested) error {
	if err := n.Write(string(w.resource), w.set.String()); err != nil {
		return fmt.Errorf("write %q to %s of nested cgroup %s: %w", w.set, w.resource, w.dir, err)
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

// plan returns the writes, in order, that give the destination the wanted set, of which its parent has all.
//
// A nested cgroup that is not within wanted is narrowed, the deepest first: kernels before 5.17 answer EBUSY when a
// child asks for more than what is written (validate_change in kernel/cgroup/cpuset.c). Nothing has to grow beforehand,
// since on v2 a child may ask for more than its parent has. For newer kernels, which mask nested cgroups, leave nested
// empty.
func plan(r resource, destination node, wanted Set) []write {
	return appendPlan(nil, r, &destination, wanted)
}

func appendPlan(writes []write, r resource, n *node, wanted Set) []write {
	if n.requested == wanted {
		return writes
	}
	for i := range n.nested {
		writes = appendNarrow(writes, r, &n.nested[i], wanted)
	}
	return append(writes, write{r, n.dir, n.inode, wanted})
}

// appendNarrow adds the writes that bring a cgroup and those nested in it within bound. A cgroup that asks for
// nothing within it gets all of it, since the kernel lets no list become empty while there are tasks.
func appendNarrow(writes []write, r resource, n *node, bound Set) []write {
	if n.requested.Subset(bound) {
		return writes
	}
	if within := n.requested.Intersect(bound); !within.Empty() {
		bound = within
	}
	return appendPlan(writes, r, n, bound)
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

// observeNested returns the cgroups in dir, with only requested. It leaves out those that disappear meanwhile.
func observeNested(dir string, r resource) ([]node, error) {
	way := make([]node, 1) // dir itself, and the nested cgroups down to the one where the walk is
	leaveTo := func(depth int) {
		for last := len(way) - 1; last > depth; last-- {
			way[last-1].nested = append(way[last-1].nested, way[last])
			way = way[:last]
		}
	}
	err := cgroup.WalkNested(dir, func(n cgroup.Nested) error {
		text, err := n.Read(string(r))
		if err != nil && !cgroup.IsGone(err) { // as in readRequested
			return err
		}
		requested, err := Parse(firstLine(text))
		if err != nil {
			return fmt.Errorf("%s of nested cgroup %s: %w", r, n.Name(), err)
		}
		leaveTo(n.Depth() - 1)
		way = append(way, node{dir: n.Name(), inode: n.Inode, requested: requested})
		return nil
	}, nil)
	if err != nil && !cgroup.IsGone(err) {
		return nil, err
	}
	leaveTo(0)
	return way[0].nested, nil
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
