// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// node is the open directory of a cgroup in one hierarchy. A container that may make cgroups nests them deeper than any path
// can say (PATH_MAX), so what is nested is reached from one directory to the next.
type node struct {
	*os.File // its name is for messages only
}

// openNode opens the directory at path.
func openNode(path string) (node, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	return node{f}, err
}

// walk calls visit for the directory at path and then for each below it, parents first. When all in one below path were
// visited, it calls leave with the directory above it and its name there. Nested cgroups come and go: one that goes while it
// is visited is passed over, and only that at path being gone is an error.
//
// Three descriptors are open at a time, however deep it is: the way back is "..", since no cgroup ever gets another parent.
func walk(path string, visit func(node) error, leave func(above node, name string) error) error {
	here, err := openNode(path)
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }() // the one of then; opened for reading, as all
	nested, err := here.visit(visit)
	if err != nil {
		return err
	}
	type level struct {
		name   string   // of a directory on the way from path to here
		nested []string // those in it that are still to be visited
	}
	way := []level{{path, nested}}
	for {
		last := &way[len(way)-1]
		if n := len(last.nested); n > 0 {
			name := last.nested[n-1]
			last.nested = last.nested[:n-1]
			below, nested, err := here.enter(name, visit)
			switch {
			case err == nil:
				_ = here.Close()
				here = below
				way = append(way, level{name, nested})
			case !gone(err):
				return err
			}
			continue
		}
		way = way[:len(way)-1]
		if len(way) == 0 {
			return nil
		}
		above, err := here.below("..")
		if err != nil {
			return err
		}
		_ = here.Close()
		here = above
		if err := leave(here, last.name); err != nil && !gone(err) {
			return err
		}
	}
}

// stay is what a walk does that has nothing to do when it leaves a directory.
func stay(node, string) error { return nil }

// enter opens a directory in n and visits it.
func (n node) enter(name string, f func(node) error) (node, []string, error) {
	below, err := n.below(name)
	if err != nil {
		return node{}, nil, err
	}
	nested, err := below.visit(f)
	if err != nil {
		_ = below.Close()
		return node{}, nil, err
	}
	return below, nested, nil
}

// visit calls f and returns the names of the directories in n.
func (n node) visit(f func(node) error) ([]string, error) {
	if err := f(n); err != nil {
		return nil, err
	}
	// The kernel counts subdirectories in the link count, as most file systems do. Most containers have none, and this
	// saves reading a directory of forty files.
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

// below opens a directory in n.
func (n node) below(name string) (node, error) {
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
