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

func TestProcs(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{
		"v2/cgroup.procs":          "30\n7\n0\n7\n", // unordered, twice, and one of another pid namespace
		"v2/nested/cgroup.procs":   "8\n",
		"v2/nested/b/cgroup.procs": "9\n",
		"v2/going/memory.events":   "", // its cgroup.procs is gone already
		"pids/cgroup.procs":        "1\n2\n",
		"devices/cgroup.procs":     "2\n3\n",
		"bad/cgroup.procs":         "1\nx\n",
	} {
		testx.Write(t, filepath.Join(dir, path), content)
	}
	for name, tt := range map[string]struct {
		paths map[string]string
		want  []int
		err   string
	}{
		"v2":                 {map[string]string{"": dir + "/v2"}, []int{7, 8, 9, 30}, ""},
		"the union on v1":    {map[string]string{"pids": dir + "/pids", "devices": dir + "/devices", "memory": dir + "/gone"}, []int{1, 2, 3}, ""},
		"no list of numbers": {map[string]string{"": dir + "/bad"}, nil, procsFile},
		"removed":            {map[string]string{"": dir + "/gone"}, nil, errdefs.ErrNotFound.Error()},
		"no path":            {nil, nil, errdefs.ErrNotFound.Error()},
	} {
		got, err := New(tt.paths).Procs()
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: Procs (-want +got):\n%s", name, diff)
		}
		if tt.err == "" {
			testx.Must(t, err)
			continue
		}
		testx.WantText(t, err, tt.err)
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
	testx.NeedRoot(t)
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
