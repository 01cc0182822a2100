// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestMakeChild_CountsAndCanBeKilled(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			nested, err := c.MakeChild("n1")
			testx.Must(t, err)
			paths := c.ChildPaths(nested, "n1")
			if len(paths) != len(c.paths) {
				t.Errorf("ChildPaths = %v, want a path for each of %v", paths, c.paths)
			}
			for controller, dir := range paths {
				want := c.paths[controller]
				if controller != "devices" { // the only one here in which nothing is made
					want = filepath.Join(want, "n1")
				}
				if dir != want || !exists(dir) {
					t.Errorf("path in %q = %s, want the directory %s", controller, dir, want)
				}
			}

			if _, err := c.MakeChild("n1"); !errdefs.IsAlreadyExists(err) {
				t.Errorf("MakeChild of the same name = %v, want already exists", err)
			}

			p := start(t, nested, "x=0; while [ $x -lt 50000 ]; do x=$((x+1)); done; read x")
			if c.unified || c.Path("cpuacct") != "" {
				testx.Eventually(t, "CPU time is counted", func() bool { u, err := nested.Usage(); return err == nil && u.CPU > 0 })
			}
			if pids, err := c.Procs(); err != nil || !slices.Contains(pids, p.Process.Pid) {
				t.Errorf("Procs of the outer one = %v, %v, want %d in it", pids, err, p.Process.Pid)
			}
			kill(t, nested)
			<-p.ended
			if err := nested.Remove(deadline(t)); err != nil {
				t.Error(err)
			}
			if _, err := nested.Usage(); c.unified && !errdefs.IsNotFound(err) {
				t.Errorf("Usage of one that is gone = %v, want not found", err)
			}
		})
	}
}

func TestMakeChild_LeavesNothingWhenItFails(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"freezer", "memory/n1"} {
		testx.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	c := New(map[string]string{"freezer": filepath.Join(root, "freezer"), "memory": filepath.Join(root, "memory"), "pids": filepath.Join(root, "gone")})
	if _, err := c.MakeChild("n1"); err == nil {
		t.Error("MakeChild of a name that is taken in one hierarchy worked")
	}
	if exists(filepath.Join(root, "freezer/n1")) {
		t.Error("a directory is left")
	}
	if _, err := New(nil).MakeChild("n1"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("MakeChild without a hierarchy = %v, want failed precondition", err)
	}
}

func TestMakeChild_StaysInAMemoryCgroupThatDoesNotCountChildren(t *testing.T) {
	for hierarchy, want := range map[string]bool{"0\n": false, "1\n": true} {
		root := t.TempDir()
		c := New(map[string]string{"memory": filepath.Join(root, "memory"), "pids": filepath.Join(root, "pids")})
		for _, dir := range c.dirs {
			testx.Must(t, os.Mkdir(dir, 0o755))
		}
		testx.Must(t, os.WriteFile(filepath.Join(root, "memory/memory.use_hierarchy"), []byte(hierarchy), 0o600))
		if _, err := c.MakeChild("n1"); err != nil {
			t.Fatal(err)
		}
		if got := exists(filepath.Join(root, "memory/n1")); got != want || !exists(filepath.Join(root, "pids/n1")) {
			t.Errorf("memory.use_hierarchy %q: nested there: %t, want %t", hierarchy, got, want)
		}
	}
}
