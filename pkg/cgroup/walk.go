// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// node is the open directory of a cgroup in one hierarchy. A container that may make cgroups can nest them deeper than
// a path can name (PATH_MAX), so nested ones are opened from one directory to the next.
type node struct {
	*os.File // its name is for messages only
}

// walk calls visit for the directory at path and for each below it, parents first. After all directories in one below
// path were visited, it calls leave with its parent and its name there. Both may be nil. Nested cgroups come and go:
// one that goes during the visit is skipped. Only path itself being gone is an error.
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

// enter opens a directory in n and visits it.
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

// visit calls f and returns the names of the directories in n.
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

// openDir opens a directory in n.
func (n node) openDir(name string) (node, error) {
	f, err := n.openAt(name, unix.O_DIRECTORY, name)
	return node{f}, err
}

// open opens a file in n.
func (n node) open(file string, flags int) (*os.File, error) {
	return n.openAt(file, flags, filepath.Join(n.Name(), file))
}

func (n node) openAt(name string, flags int, label string) (*os.File, error) {
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

// read reads a file in n.
func (n node) read(file string) ([]byte, error) {
	f, err := n.open(file, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	return io.ReadAll(f)
}
