// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/cgroups/v3"

	"sandbox.internal/shim/pkg/internal/testx"
)

// absent returns the path of a cgroup that does not exist, and the roots of all hierarchies. What the test makes there
// is removed.
func absent(t *testing.T) (path string, tops []string) {
	t.Helper()
	testx.NeedRoot(t)
	found, err := roots()
	testx.Must(t, err)
	tops = slices.Compact(slices.Sorted(maps.Values(found)))
	first := fmt.Sprintf("shim-test-hierarchy-%d-%d", os.Getpid(), serial.Add(1))
	t.Cleanup(func() {
		for _, top := range tops {
			remove(t, New(map[string]string{"": filepath.Join(top, first)}))
		}
	})
	return "/" + first, tops
}

func TestAt_HasTheHierarchiesInWhichTheCgroupIs(t *testing.T) {
	path, tops := absent(t)
	var dirs []string
	for i, top := range tops {
		if i%2 == 0 { // on v2 the only one
			dirs = append(dirs, filepath.Join(top, path))
		}
	}
	for _, dir := range dirs {
		testx.Must(t, os.Mkdir(dir, 0o755))
	}
	got, err := At(path)
	testx.Must(t, err)
	found, err := roots()
	testx.Must(t, err)
	for controller, top := range found {
		want := filepath.Join(top, path)
		if controller == "systemd" || !slices.Contains(dirs, want) {
			want = ""
		}
		if dir := got.Path(controller); dir != want {
			t.Errorf("Path(%q) = %q, want %q", controller, dir, want)
		}
	}
}

// Such a cgroup would be taken for one of cgroup v2.
func TestAt_IsNoneWhereOnlyTheSecondVersionHasIt(t *testing.T) {
	if cgroups.Mode() != cgroups.Hybrid {
		t.Skip("SKIPPED: needs cgroup v1 with v2 beside it")
	}
	path, _ := absent(t)
	testx.Must(t, os.Mkdir(filepath.Join(hybridRoot, path), 0o755)) // absent removes it
	if got, err := At(path); err != nil || !got.IsNone() {
		t.Errorf("At = %v, %v, want none", got, err)
	}
}
