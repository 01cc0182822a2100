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
)

func TestMemoryLimit_IsTheLeastOfTheCgroupAndThoseAboveIt(t *testing.T) {
	needRoot(t)
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if Detect() == Unified {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	path := fmt.Sprintf("/shim-test-limit-%d", os.Getpid())
	top := filepath.Join(root, path)
	dir := filepath.Join(top, "a")
	if Detect() == Unified {
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
		if step.limit == "-1" && Detect() == Unified {
			step.limit = "max"
		}
		setControl(t, filepath.Join(step.dir, file), step.limit)
		group, err := At(path + "/a")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := group.MemoryLimit(); err != nil || got != step.want {
			t.Errorf("MemoryLimit() after %s in %s = %d, %v, want %d", step.limit, step.dir, got, err, step.want)
		}
	}
	absent, err := At(path + "/none")
	if err != nil {
		t.Fatal(err)
	}
	want := uint64(math.MaxUint64)
	if Detect() == Unified { // where its path does not depend on whether it is there
		want = 128 << 20
	}
	if got, err := absent.MemoryLimit(); err != nil || got != want {
		t.Errorf("MemoryLimit() of a cgroup that is not there = %d, %v, want %d", got, err, want)
	}
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
	if err := write(path, value); err != nil {
		t.Fatal(err)
	}
}
