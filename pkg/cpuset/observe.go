// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/cgroup"
)

// resource is one part of a cpuset, named like the file with its list.
type resource string

const (
	cpus resource = "cpuset.cpus"
	mems resource = "cpuset.mems"

	partitionFile = "cpuset.cpus.partition"
)

type node struct {
	dir       string
	requested Set    // what the file of the resource says; empty inherits
	effective Set    // what the tasks of the cgroup have
	partition string // member, root or isolated, with the reason if invalid
}

// usable reports whether a cgroup has something of what it asks for. Otherwise what it has is not an assignment, but
// what the kernel lends it from its parent; or somebody wrote between two reads.
func (n node) usable() bool {
	return n.requested.Empty() || !n.requested.Intersect(n.effective).Empty()
}

// assign returns what the destination is to have: what both the source and the destination's parent have. An error,
// always errdefs.ErrFailedPrecondition, says why the destination must keep what it has.
func assign(r resource, source, parent, destination node) (Set, error) {
	refuse := func(format string, args ...any) (Set, error) {
		return Set{}, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
	}
	wanted := source.effective.Intersect(parent.effective)
	switch {
	case !source.usable():
		return refuse("%s %q of %s: none of these can be used now", r, source.requested, source.dir)
	case destination.partition != "member":
		return refuse("%s of %s is %q: must be member to follow a source",
			partitionFile, destination.dir, destination.partition)
	case source.effective.Empty():
		return refuse("%s.effective of %s is empty", r, source.dir)
	case wanted.Empty():
		return refuse("%s.effective of %s is %q: has nothing of the source's %q",
			r, parent.dir, parent.effective, source.effective)
	}
	return wanted, nil
}

// observe reads what dir has of the resource. A directory that is gone gives errdefs.ErrNotFound, one without the
// cpuset controller errdefs.ErrFailedPrecondition. The root of the hierarchy, which has no list and is no partition,
// inherits.
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
	if err == nil {
		n.partition, err = readLine(dir, partitionFile)
		if cgroup.IsGone(err) { // the root, and kernels before 5.0
			n.partition, err = "member", nil
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
	text, err := os.ReadFile(filepath.Join(dir, file))
	line, _, _ := strings.Cut(string(text), "\n")
	return line, err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
