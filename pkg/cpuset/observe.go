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

// observe reads what dir has of the resource. A directory that is gone is errdefs.ErrNotFound, one without the cpuset
// controller errdefs.ErrFailedPrecondition. The root of the hierarchy, which has no list and is no partition, inherits.
func observe(dir string, r resource) (node, error) {
	l, err := readStable(func() (lists, error) { return readLists(dir, r) })
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
	switch {
	case cgroup.IsGone(err): // the root, and kernels before 5.0
		n.partition = "member"
	case err != nil:
		return node{}, err
	}
	return n, nil
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

// readLists reads both once.
func readLists(dir string, r resource) (l lists, err error) {
	if l.requested, err = readList(dir, r); err != nil {
		return l, err
	}
	effective, err := readLine(dir, string(r)+".effective")
	if err != nil {
		return l, err
	}
	if l.effective, err = Parse(effective); err != nil {
		return l, fmt.Errorf("%s.effective of %s: %w", r, dir, err)
	}
	return l, nil
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
		if n.requested, err = readList(n.dir, r); err != nil {
			return nil, err
		}
		if n.nested, err = observeNested(n.dir, r); err != nil {
			return nil, err
		}
		nested = append(nested, n)
	}
	return nested, nil
}

// readList reads what a cgroup asks for. No file, as in the root and where the controller is off, asks for nothing.
func readList(dir string, r resource) (Set, error) {
	list, err := readLine(dir, string(r))
	if cgroup.IsGone(err) {
		return Set{}, nil
	}
	if err != nil {
		return Set{}, err
	}
	set, err := Parse(list)
	if err != nil {
		return Set{}, fmt.Errorf("%s of %s: %w", r, dir, err)
	}
	return set, nil
}

// readLine reads a control file of one line.
func readLine(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	line, _, _ := bytes.Cut(b, []byte{'\n'})
	return string(line), err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
