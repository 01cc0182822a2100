// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"fmt"
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

// node is the state of one resource of one cgroup.
type node struct {
	dir       string
	requested Set    // what the file of the resource says; empty inherits
	effective Set    // what the tasks of the cgroup have
	partition string // cpuset.cpus.partition: member, or root or isolated, if invalid with the reason
	nested    []node // the cgroups in it, with requested alone
}

// write is one write of one control file.
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
