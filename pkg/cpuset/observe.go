// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// observe reads what dir has of the resource. A directory that is gone is errdefs.ErrNotFound, one without the cpuset
// controller errdefs.ErrFailedPrecondition. The root of the hierarchy, which has no list and is no partition, inherits.
func observe(dir string, r resource) (node, error) {
	n := node{dir: dir}
	effective, err := n.readLists(r)
	switch {
	case gone(err) && !isDir(dir):
		return node{}, fmt.Errorf("cgroup %s: %w", dir, errdefs.ErrNotFound)
	case gone(err):
		return node{}, fmt.Errorf("cgroup %s has no cpuset controller: %w", dir, errdefs.ErrFailedPrecondition)
	case err != nil:
		return node{}, err
	}
	if n.effective, err = Parse(effective); err != nil {
		return node{}, fmt.Errorf("%s.effective of %s: %w", r, dir, err)
	}
	n.partition, err = readLine(dir, string(cpus)+".partition")
	switch {
	case gone(err): // the root, and kernels before 5.0
		n.partition = "member"
	case err != nil:
		return node{}, err
	}
	return n, nil
}

// readLists reads requested and returns the effective list that goes with it: assign compares the two, so it reads again
// while somebody writes in between. If that does not end, the next look, of which the last write tells, sees both.
func (n *node) readLists(r resource) (effective string, err error) {
	const tries = 3
	for range tries {
		if n.requested, err = readList(n.dir, r); err != nil {
			return "", err
		}
		if effective, err = readLine(n.dir, string(r)+".effective"); err != nil {
			return "", err
		}
		if again, err := readList(n.dir, r); err != nil || again == n.requested {
			return effective, err
		}
	}
	return effective, nil
}

// observeNested returns the cgroups in dir, of which requested is known. One that goes meanwhile is left out.
func observeNested(dir string, r resource) ([]node, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !gone(err) {
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
	if gone(err) {
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

// gone reports whether err says that a control file is not there: not found, or open when its cgroup was removed.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
