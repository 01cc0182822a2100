// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

// absent returns the path of a cgroup that does not exist, and the roots of all hierarchies. What the test makes at and
// below the first element is removed.
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
	return "/" + first + "/a/b", tops
}

func makeAt(t *testing.T, path string) []string {
	t.Helper()
	dirs, err := Missing(path)
	testx.Must(t, err)
	made, err := Make(path, dirs)
	testx.Must(t, err)
	if !slices.Equal(made, dirs) {
		t.Errorf("Make(%q) = %q, want all of it", dirs, made)
	}
	return made
}

func TestMake_ContainersCanBeInWhatItMakes(t *testing.T) {
	path, tops := absent(t)
	made := makeAt(t, path)
	if got, want := len(made), 3*len(tops); got != want {
		t.Errorf("made %q, want %d directories", made, want)
	}
	group, err := At(path)
	testx.Must(t, err)
	all := map[string]string{} // with that of systemd, which has no controller
	for _, top := range tops {
		all[top] = filepath.Join(top, path)
	}
	p := start(t, New(all), "read x") // an empty cpuset takes no process
	if pids, err := group.Procs(); err != nil || !slices.Contains(pids, p.Process.Pid) {
		t.Errorf("processes = %v, %v, want %d", pids, err, p.Process.Pid)
	}
	if left := RemoveEmpty(made); !slices.Equal(left, made) {
		t.Errorf("RemoveEmpty(%q) leaves %q, want all: a process is in it", made, left)
	}
	testx.Must(t, group.Kill(t.Context()))
	p.wait(t)
	testx.Eventually(t, "RemoveEmpty removes all", func() bool { return len(RemoveEmpty(made)) == 0 })
	if left, err := Missing(path); err != nil || !slices.Equal(left, made) {
		t.Errorf("missing after the removal = %q, %v, want %q", left, err, made)
	}
}

func TestMake_EnablesTheControllersOfVersion2(t *testing.T) {
	if cgroups.Mode() != cgroups.Unified {
		t.Skip("SKIPPED: needs cgroup v2 alone")
	}
	path, tops := absent(t)
	makeAt(t, path)
	want, err := os.ReadFile(filepath.Join(tops[0], "cgroup.controllers"))
	testx.Must(t, err)
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		got, err := os.ReadFile(filepath.Join(tops[0], dir, "cgroup.controllers"))
		if err != nil || string(got) != string(want) {
			t.Errorf("controllers of %s = %q, %v, want those of the root, %q", dir, got, err, want)
		}
	}
}

func TestMake_LeavesWhatIsThere(t *testing.T) {
	path, tops := absent(t)
	first := makeAt(t, filepath.Dir(filepath.Dir(path)))
	// One hierarchy has more.
	owners := filepath.Join(tops[0], filepath.Dir(path))
	testx.Must(t, os.Mkdir(owners, 0o755))
	made := makeAt(t, path)
	if got, want := len(made), 2*len(tops)-1; got != want || slices.Contains(made, owners) {
		t.Errorf("made %q, want %d directories and not %s", made, want, owners)
	}
	if left := RemoveEmpty(made); len(left) > 0 {
		t.Errorf("left %q, want nothing", left)
	}
	for _, dir := range append(first, owners) {
		if !testx.Exists(dir) {
			t.Errorf("%s was there before, and is gone", dir)
		}
	}
	if again, err := Make(path, nil); len(again) > 0 || err != nil {
		t.Errorf("Make(path, nil) = %q, %v", again, err)
	}
}

// Somebody else makes a directory after Missing, and one cannot be made.
func TestMake_FailureLeavesNothingOfItsOwn(t *testing.T) {
	path, tops := absent(t)
	dirs, err := Missing(path)
	testx.Must(t, err)
	testx.Must(t, os.Mkdir(dirs[0], 0o755))
	bad := filepath.Join(tops[len(tops)-1], filepath.Dir(path), "a\nb") // the kernel refuses such a name
	made, err := Make(path, append(slices.Clone(dirs), bad))
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "make cgroup") || len(made) > 0 {
		t.Errorf("Make = %q, %v, want an invalid argument", made, err)
	}
	for i, dir := range dirs {
		if got, want := testx.Exists(dir), i == 0; got != want {
			t.Errorf("%s is there: %t, want %t", dir, got, want)
		}
	}
}

func TestMissing_RefusesFiles(t *testing.T) {
	path, tops := absent(t)
	makeAt(t, path)
	group, err := At(path + "/cgroup.procs")
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("At of a file = %v, %v, want an invalid argument", group, err)
	}
	// As if somebody made it after Missing.
	made, err := Make(path, []string{filepath.Join(tops[0], path, "cgroup.procs")})
	if !errdefs.IsInvalidArgument(err) || len(made) > 0 {
		t.Errorf("Make of a file = %q, %v, want an invalid argument", made, err)
	}
	for _, below := range []string{"/cgroup.procs", "/cgroup.procs/x", strings.Repeat("/x", 3000)} {
		if list, err := Missing(path + below); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Missing(%q) = %q, %v, want an invalid argument", path+below, list, err)
		}
	}
	if list, err := Missing("/"); err != nil || len(list) > 0 {
		t.Errorf("Missing of the root = %q, %v, want nothing", list, err)
	}
}

func TestAt_HasTheHierarchiesInWhichTheCgroupIs(t *testing.T) {
	path, tops := absent(t)
	path = filepath.Dir(filepath.Dir(path))
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
	path = filepath.Dir(filepath.Dir(path))
	testx.Must(t, os.Mkdir(filepath.Join(hybridRoot, path), 0o755)) // absent removes it
	if got, err := At(path); err != nil || !got.IsNone() {
		t.Errorf("At = %v, %v, want none", got, err)
	}
}
