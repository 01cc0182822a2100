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

	"sandbox.internal/shim/pkg/internal/testx"
)

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
			setControl(t, filepath.Join(d, "cgroup.subtree_control"), "+memory")
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
		setControl(t, filepath.Join(step.dir, file), step.limit)
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

func setControl(t *testing.T, path, value string) {
	t.Helper()
	testx.Must(t, Write(path, value))
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
