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

// makeLimited is a cgroup with controllers for its children, or nil where the machine has none for this layout.
func makeLimited(t *testing.T, makeCgroup func(testing.TB) *Cgroup) *Cgroup {
	t.Helper()
	c := makeCgroup(t)
	if !c.unified {
		return c
	}
	if cgroups.Mode() != cgroups.Unified {
		return nil // v1 has the controllers
	}
	setControl(t, "/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids +cpu")
	return c
}

func control(t *testing.T, c *Cgroup, file string) string {
	t.Helper()
	text, err := os.ReadFile(c.File(file))
	testx.Must(t, err)
	return strings.TrimSpace(string(text))
}

func TestDelegate_LimitsChildren(t *testing.T) {
	for name, makeCgroup := range map[string]func(testing.TB) *Cgroup{"v1": makeV1, "v2": makeV2} {
		t.Run(name, func(t *testing.T) {
			c := makeLimited(t, makeCgroup)
			if c == nil {
				return
			}
			p := start(t, c, "read x")
			if c.unified && c.CanLimit("memory") {
				t.Error("children can be limited before Delegate")
			}
			testx.Must(t, c.Delegate("leaf"))
			for controller, want := range map[string]bool{"memory": true, "pids": true, "hugetlb": false} {
				if got := c.CanLimit(controller); got != want {
					t.Errorf("CanLimit(%s) = %t", controller, got)
				}
			}
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
				if got := control(t, child, file); got != value {
					t.Errorf("%s = %q, want %q", file, got, value)
				}
			}
			greedy := start(t, child, "sleep 100 & sleep 100 & sleep 100 & sleep 100")
			testx.Eventually(t, "a fork is refused", func() bool { a, err := child.Account(); return err == nil && a.ForksRefused > 0 })
			a, err := child.Account()
			if err != nil || a.Memory == 0 || a.OOMKills != 0 {
				t.Errorf("Account = %+v, %v", a, err)
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
	for name, tt := range map[string]struct {
		files map[string]string
		leaf  bool
		want  uint64
	}{
		"since 6.11":               {map[string]string{"pids.events": "max 7\n", "pids.events.local": "max 2\n", "init/pids.events": "max 4\n"}, true, 2},
		"before":                   {map[string]string{"pids.events": "max 3\n"}, false, 3},
		"before, with exec-limits": {map[string]string{"pids.events": "max 0\n", "init/pids.events": "max 4\n"}, true, 4},
		"with pids_localevents":    {map[string]string{"pids.events": "max 0\n", "pids.events.local": "max 0\n", "init/pids.events.local": "max 4\n"}, true, 4},
		"before, a nested init":    {map[string]string{"pids.events": "max 3\n", "init/pids.events": "max 4\n"}, false, 3},
	} {
		dir := t.TempDir()
		tt.files["cpu.stat"] = "usage_usec 1\n"
		testx.Must(t, os.Mkdir(filepath.Join(dir, "init"), 0o755))
		for file, text := range tt.files {
			testx.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
		c := New(map[string]string{"": dir})
		if leaf := filepath.Join(dir, "init"); tt.leaf {
			c.leaf.Store(&leaf)
		}
		if a, err := c.Account(); err != nil || a.ForksRefused != tt.want {
			t.Errorf("%s: Account = %+v, %v, want %d forks refused", name, a, err, tt.want)
		}
	}
}

func TestLimit_WithoutTheControllerNamesTheFile(t *testing.T) {
	c := New(map[string]string{"pids": t.TempDir()})
	for file, err := range map[string]error{
		"memory.limit_in_bytes": c.LimitMemory(1 << 20), "pids.max": c.LimitPids(1),
	} {
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
