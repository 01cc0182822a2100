// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// resource is what a cpuset is made of, named as the file with the list.
type resource string

const (
	cpus resource = "cpuset.cpus"
	mems resource = "cpuset.mems"
)

// node is what the kernel tells of one resource of one cgroup.
type node struct {
	dir       string
	requested Set    // what the file of the resource holds; empty is to inherit
	effective Set    // what the tasks of the cgroup have
	partition string // cpuset.cpus.partition: member, root, isolated, or one of the latter with why it is invalid
	nested    []node // the cgroups in it; of these requested alone is known
}

// write is one write of one control file.
type write struct {
	resource resource
	dir      string
	set      Set
}

// assign returns what the destination is to have: what the source has and the destination's parent has too. An error, always
// errdefs.ErrFailedPrecondition, says why the destination must keep what it has.
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

// plan returns the writes, in order, after which the destination has the wanted set; none if it has it. It assumes that the
// parent has all of wanted, as assign sees to.
//
// A nested cgroup that is not within wanted is narrowed, the deepest first, since kernels before 5.17 answer EBUSY when a
// cgroup is written whose child asks for more (validate_change in kernel/cgroup/cpuset.c). Nothing has to grow beforehand: on
// v2 a child may ask for more than its parent has, and runs on what both have. For kernels that mask, hand in no nested.
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

// narrow returns the writes that bring a cgroup and those nested in it within bound. A cgroup that has nothing within it
// gets all of it: the kernel lets no list with tasks become empty.
func narrow(r resource, n node, bound Set) []write {
	if n.requested.Subset(bound) {
		return nil
	}
	if within := n.requested.Intersect(bound); !within.Empty() {
		bound = within
	}
	return plan(r, n, bound)
}
