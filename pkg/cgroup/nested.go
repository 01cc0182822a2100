// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

// Nested is a cgroup below another one, open while [WalkNested] calls a function with it.
type Nested struct {
	dir   node
	Inode uint64 // of its directory: no other cgroup of the hierarchy has it
}

// WalkNested calls enter for each cgroup below the one at path, parents first, and leave after it has been called for
// all those in the cgroup. Either may be nil. Nested cgroups come and go: one that goes meanwhile is skipped, also if a
// function's error says so (IsGone). Only path itself being gone is an error.
func WalkNested(path string, enter, leave func(Nested) error) error {
	call := func(f func(Nested) error, n node) error {
		if f == nil {
			return nil
		}
		s, err := n.stat()
		if err != nil {
			return err
		}
		return f(Nested{n, s.Ino})
	}
	return walk(path, func(n node) error {
		if n.depth == 0 {
			return nil
		}
		return call(enter, n)
	}, func(parent node, name string) error {
		n, err := parent.openDir(name)
		if err != nil {
			return err
		}
		defer func() { _ = n.Close() }() // opened for reading only
		return call(leave, n)
	})
}

// Name returns the name of its directory in its parent.
func (n Nested) Name() string { return n.dir.Name() }

// Depth returns how far it is below the cgroup at the top of the walk; 1 is directly in it.
func (n Nested) Depth() int { return n.dir.depth }

// Read reads a control file.
func (n Nested) Read(file string) ([]byte, error) { return n.dir.read(file) }

// Write is [Write] for a control file of the cgroup.
func (n Nested) Write(file, text string) error { return n.dir.write(file, text) }
