// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestMakeChild_CountsAndCanBeKilled(t *testing.T) {
	eachLayout(t, func(t *testing.T, c *Cgroup) {
		t.Helper()
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
		if c.unified {
			testx.Eventually(t, "CPU time is counted", func() bool { u, err := nested.Usage(); return err == nil && u.CPU > 0 })
		}
		if pids, err := c.Procs(); err != nil || !slices.Contains(pids, p.Process.Pid) {
			t.Errorf("Procs of the outer one = %v, %v, want %d in it", pids, err, p.Process.Pid)
		}
		kill(t, nested)
		<-p.ended
		testx.Must(t, nested.Remove(deadline(t)))
		if _, err := nested.Usage(); c.unified && !errdefs.IsNotFound(err) {
			t.Errorf("Usage of one that is gone = %v, want not found", err)
		}
	})
}

func TestMakeChild_LeavesNothingWhenItFails(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"freezer", "memory/n1"} {
		testx.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	c := New(map[string]string{"freezer": root + "/freezer", "memory": root + "/memory", "pids": root + "/gone"})
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

func TestDelegate_LimitsChildren(t *testing.T) {
	for name, makeCgroup := range map[string]func(testing.TB) *Cgroup{"v1": makeV1, "v2": makeV2} {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			if c.unified && cgroups.Mode() != cgroups.Unified {
				return // v1 has the controllers
			}
			if c.unified {
				testx.Must(t, Write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu"))
			}
			p := start(t, c, "read x")
			testx.Must(t, c.Delegate("leaf"))
			if pids, err := c.Procs(); err != nil || !slices.Contains(pids, p.Process.Pid) {
				t.Errorf("Procs = %v, %v, want %d in it", pids, err, p.Process.Pid)
			}
			child, err := c.MakeChild("n1")
			testx.Must(t, err)
			testx.Must(t, child.LimitMemory(16<<20))
			testx.Must(t, child.LimitPids(3))
			want := map[string]string{"memory.limit_in_bytes": "16777216", "pids.max": "3"}
			if c.unified {
				want = map[string]string{"memory.max": "16777216", "memory.oom.group": "1", "pids.max": "3"}
			}
			for file, value := range want {
				if got := strings.TrimSpace(testx.Read(t, child.File(file))); got != value {
					t.Errorf("%s = %q, want %q", file, got, value)
				}
			}
			greedy := start(t, child, "sleep 100 & sleep 100 & sleep 100 & sleep 100")
			testx.Eventually(t, "a fork is refused", func() bool { a, err := child.Account(); return err == nil && a.ForksRefused > 0 })
			a, err := child.Account()
			known := !c.unified || testx.Exists(child.File("memory.peak")) // which is since Linux 5.19
			if err != nil || known == (a.Memory == 0) || a.OOMKills != 0 {
				t.Errorf("Account = %+v, %v; memory known: %v", a, err, known)
			}
			if child.IsEmpty() {
				t.Error("a cgroup with processes is called empty")
			}
			kill(t, child)
			<-greedy.ended
			testx.Eventually(t, "the kernel calls it empty", child.IsEmpty) // after the last context switch, since Linux 7
		})
	}
}

// What pids.events of cgroup v2 counts changed with Linux 6.11.
func TestAccount_ForksRefused(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"since 6.11": {"pids.events": "max 7\n", "pids.events.local": "max 3\n"},
		"before":     {"pids.events": "max 3\n"},
	} {
		dir := t.TempDir()
		files["cpu.stat"] = "usage_usec 1\n"
		for file, text := range files {
			testx.Write(t, filepath.Join(dir, file), text)
		}
		if a, err := New(map[string]string{"": dir}).Account(); err != nil || a.ForksRefused != 3 {
			t.Errorf("%s: Account = %+v, %v, want 3 forks refused", name, a, err)
		}
	}
}

func TestLimit_WithoutTheControllerNamesTheFile(t *testing.T) {
	c := New(map[string]string{"pids": t.TempDir()})
	testx.WantError(t, c.LimitMemory(1<<20), errdefs.ErrFailedPrecondition, "memory.limit_in_bytes")
	testx.WantError(t, c.LimitPids(1), errdefs.ErrFailedPrecondition, "pids.max")
}
