// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestNew_PathsOfEachLayout(t *testing.T) {
	tests := []struct {
		name    string
		paths   map[string]string
		unified bool
		memory  string // Path("memory")
		text    string
		dirs    []string
	}{
		{"v2 has one path for all controllers", map[string]string{"": "/cg/x"}, true, "/cg/x", "/cg/x", []string{"/cg/x"}},
		{
			"v1 has a path for each, and co-mounted ones count once",
			map[string]string{"memory": "/m/x", "cpu": "/cpu,cpuacct/x", "cpuacct": "/cpu,cpuacct/x"},
			false, "/m/x", "/m/x",
			[]string{"/cpu,cpuacct/x", "/m/x"},
		},
		{
			"hybrid is v1 although it has a v2 path",
			map[string]string{"memory": "/m/x", "": "/unified/x"},
			false, "/m/x", "/m/x",
			[]string{"/m/x", "/unified/x"},
		},
		{"v1 without memory controller", map[string]string{"pids": "/p/x"}, false, "", "/p/x", []string{"/p/x"}},
		{"no path at all", nil, false, "", "(no cgroup)", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := New(tt.paths)
			if got := c.Unified(); got != tt.unified {
				t.Errorf("New(%v).Unified() = %v, want %v", tt.paths, got, tt.unified)
			}
			if got := c.Path("memory"); got != tt.memory {
				t.Errorf("New(%v).Path(memory) = %q, want %q", tt.paths, got, tt.memory)
			}
			if got := c.String(); got != tt.text {
				t.Errorf("New(%v).String() = %q, want %q", tt.paths, got, tt.text)
			}
			if diff := cmp.Diff(tt.dirs, c.dirs); diff != "" {
				t.Errorf("New(%v): directories (-want +got):\n%s", tt.paths, diff)
			}
		})
	}
}

func TestProcs_OfFiles(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{
		"cgroup.procs":          "30\n7\n0\n7\n", // unordered, twice, and one of another pid namespace
		"nested/cgroup.procs":   "8\n",
		"nested/a/cgroup.procs": "",
		"nested/b/cgroup.procs": "9\n",
		"going/memory.events":   "", // its cgroup.procs is gone already
	} {
		testx.Write(t, filepath.Join(dir, path), content)
	}
	got, err := New(map[string]string{"": dir}).Procs()
	if diff := cmp.Diff([]int{7, 8, 9, 30}, got); diff != "" || err != nil {
		t.Errorf("Procs: error %v, (-want +got):\n%s", err, diff)
	}
}

func TestProcs_AreTheUnionOfTheHierarchiesOfV1(t *testing.T) {
	dir := t.TempDir()
	testx.Write(t, filepath.Join(dir, "pids/x/cgroup.procs"), "1\n2\n")
	testx.Write(t, filepath.Join(dir, "devices/x/cgroup.procs"), "2\n3\n")
	got, err := New(map[string]string{
		"pids": dir + "/pids/x", "devices": dir + "/devices/x", "memory": dir + "/memory/removed",
	}).Procs()
	if diff := cmp.Diff([]int{1, 2, 3}, got); diff != "" || err != nil {
		t.Errorf("Procs: error %v, (-want +got):\n%s", err, diff)
	}
}

func TestProcs_NamesAFileThatIsNoListOfNumbers(t *testing.T) {
	dir := t.TempDir()
	testx.Write(t, filepath.Join(dir, "cgroup.procs"), "1\nx\n")
	if got, err := New(map[string]string{"": dir}).Procs(); err == nil {
		t.Errorf("Procs = %v, want an error", got)
	}
}

func TestProcs_OfACgroupThatIsGone(t *testing.T) {
	for name, c := range map[string]*Cgroup{
		"removed": New(map[string]string{"": filepath.Join(t.TempDir(), "x")}),
		"no path": New(nil),
	} {
		if got, err := c.Procs(); got != nil || !errdefs.IsNotFound(err) {
			t.Errorf("%s: Procs = %v, %v, want not found", name, got, err)
		}
		if c.Exists() {
			t.Errorf("%s: Exists() = true", name)
		}
	}
}

func TestCgroup_File(t *testing.T) {
	v1 := New(map[string]string{"memory": "/m", "cpu": "/c"})
	v2 := New(map[string]string{"": "/u"})
	for _, tc := range []struct {
		c          *Cgroup
		name, want string
	}{{v1, "memory.max", "/m/memory.max"}, {v1, "pids.max", ""}, {v2, "pids.max", "/u/pids.max"}, {v2, "cpu.max.burst", "/u/cpu.max.burst"}} {
		if got := tc.c.File(tc.name); got != tc.want {
			t.Errorf("File(%s) of %s = %q, want %q", tc.name, tc.c, got, tc.want)
		}
	}
}

func TestMemoryLimit_IsTheLowestOfTheCgroupAndItsAncestors(t *testing.T) {
	needRoot(t)
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if cgroups.Mode() == cgroups.Unified {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	top := filepath.Join(root, fmt.Sprintf("shim-test-limit-%d", os.Getpid()))
	dir := filepath.Join(top, "a")
	if cgroups.Mode() == cgroups.Unified {
		for _, d := range []string{root, top} {
			makeDir(t, d)
			testx.Must(t, Write(filepath.Join(d, "cgroup.subtree_control"), "+memory"))
		}
	}
	for _, d := range []string{top, dir} {
		makeDir(t, d)
	}
	for _, step := range []struct {
		dir, limit string
		want       uint64
	}{
		{dir, "-1", math.MaxUint64},
		{top, "134217728", 128 << 20},
		{dir, "268435456", 128 << 20},
		{dir, "67108864", 64 << 20},
	} {
		if step.limit == "-1" && cgroups.Mode() == cgroups.Unified {
			step.limit = "max"
		}
		testx.Must(t, Write(filepath.Join(step.dir, file), step.limit))
		group := memoryCgroup(dir)
		if got, err := group.MemoryLimit(); err != nil || got != step.want {
			t.Errorf("MemoryLimit() after %s in %s = %d, %v, want %d", step.limit, step.dir, got, err, step.want)
		}
	}
	for _, tc := range []struct {
		c    *Cgroup
		want uint64
	}{{memoryCgroup(filepath.Join(top, "none")), 128 << 20}, {New(nil), math.MaxUint64}} {
		if got, err := tc.c.MemoryLimit(); err != nil || got != tc.want {
			t.Errorf("MemoryLimit() of %s, which does not exist = %d, %v, want %d", tc.c, got, err, tc.want)
		}
	}
}

// memoryCgroup returns the cgroup that has the memory controller in dir.
func memoryCgroup(dir string) *Cgroup {
	if cgroups.Mode() == cgroups.Unified {
		return New(map[string]string{"": dir})
	}
	return New(map[string]string{"memory": dir})
}

func makeDir(t *testing.T, dir string) {
	t.Helper()
	switch err := os.Mkdir(dir, 0o755); {
	case err == nil:
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	case !errors.Is(err, fs.ErrExist):
		t.Fatal(err)
	}
}

func TestReadNumber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, tc := range []struct {
		text, key string
		want      uint64
		ok        bool
	}{
		{"5\n", "", 5, true},
		{"max\n", "", math.MaxUint64, true},
		{"a 1\nab 2\nb 3\n", "ab", 2, true},
		{"18446744073709551615\n", "", math.MaxUint64, true},
		{"-1\n", "", 0, false},
		{"a 1\n", "", 0, false},
		{"a x\n", "a", 0, false},
		{"1\n", "a", 0, false},
		{"", "", 0, false},
	} {
		testx.Write(t, path, tc.text)
		if got, err := readNumber(path, tc.key); got != tc.want || (err == nil) != tc.ok {
			t.Errorf("readNumber of %q with key %q = %d, %v, want %d, %t", tc.text, tc.key, got, err, tc.want, tc.ok)
		}
	}
}
