// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

// absent is the path of a cgroup that is not there. What is at and below its first element goes with the test.
func absent(t *testing.T) (path string, tops []string) {
	t.Helper()
	needRoot(t)
	found, err := mounts("/sys/fs/cgroup", "/proc/self/cgroup", Detect())
	if err != nil {
		t.Fatal(err)
	}
	for _, top := range found {
		tops = append(tops, top)
	}
	slices.Sort(tops)
	tops = slices.Compact(tops)
	first := fmt.Sprintf("shim-test-%d-%d", os.Getpid(), serial.Add(1))
	t.Cleanup(func() {
		for _, top := range tops {
			if exists(filepath.Join(top, first)) {
				remove(t, New(map[string]string{"": filepath.Join(top, first)}))
			}
		}
	})
	return "/" + first + "/a/b", tops
}

func makeAt(t *testing.T, path string) []string {
	t.Helper()
	dirs, err := Missing(path)
	if err != nil {
		t.Fatal(err)
	}
	made, err := Make(dirs)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	// An empty cpuset takes no process.
	p := start(t, group, "exec sleep 1000")
	for _, top := range tops { // systemd's, which is no controller's, too
		if err := write(filepath.Join(top, path, "cgroup.procs"), strconv.Itoa(p.Process.Pid)); err != nil {
			t.Error(err)
		}
	}
	if pids, err := group.Procs(); err != nil || !slices.Contains(pids, p.Process.Pid) {
		t.Errorf("processes = %v, %v, want %d", pids, err, p.Process.Pid)
	}
	if left := RemoveEmpty(made); !slices.Equal(left, made) {
		t.Errorf("RemoveEmpty(%q) leaves %q, want all: a process is in it", made, left)
	}
	if err := group.Kill(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
	eventually(t, "remove all", func() bool { return len(RemoveEmpty(made)) == 0 })
	if left, err := Missing(path); err != nil || !slices.Equal(left, made) {
		t.Errorf("missing after the removal = %q, %v, want %q", left, err, made)
	}
}

func TestMake_EnablesTheControllersOfVersion2(t *testing.T) {
	if Detect() != Unified {
		lacking(t, "cgroup2", "cgroup v2 alone")
	}
	path, tops := absent(t)
	makeAt(t, path)
	want, err := os.ReadFile(filepath.Join(tops[0], "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		if got, err := os.ReadFile(filepath.Join(tops[0], dir, "cgroup.controllers")); err != nil || string(got) != string(want) {
			t.Errorf("controllers of %s = %q, %v, want those of the root, %q", dir, got, err, want)
		}
	}
}

func TestMake_LeavesWhatIsThere(t *testing.T) {
	path, tops := absent(t)
	first := makeAt(t, filepath.Dir(filepath.Dir(path)))
	// One hierarchy has more.
	owners := filepath.Join(tops[0], filepath.Dir(path))
	if err := os.Mkdir(owners, 0o755); err != nil {
		t.Fatal(err)
	}
	made := makeAt(t, path)
	if got, want := len(made), 2*len(tops)-1; got != want || slices.Contains(made, owners) {
		t.Errorf("made %q, want %d directories and not %s", made, want, owners)
	}
	if left := RemoveEmpty(made); len(left) > 0 {
		t.Errorf("left %q, want nothing", left)
	}
	for _, dir := range append(first, owners) {
		if !isDir(dir) {
			t.Errorf("%s was there before, and is gone", dir)
		}
	}
	if again, err := Make(nil); len(again) > 0 || err != nil {
		t.Errorf("Make(nil) = %q, %v", again, err)
	}
}

// Somebody else makes a directory after Missing, and one cannot be made.
func TestMake_FailureLeavesNothingOfItsOwn(t *testing.T) {
	path, tops := absent(t)
	dirs, err := Missing(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dirs[0], 0o755); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(tops[len(tops)-1], filepath.Dir(path), "a\nb") // the kernel refuses such a name
	made, err := Make(append(slices.Clone(dirs), bad))
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "make cgroup") || len(made) > 0 {
		t.Errorf("Make = %q, %v, want an invalid argument", made, err)
	}
	for i, dir := range dirs {
		if got, want := exists(dir), i == 0; got != want {
			t.Errorf("%s is there: %t, want %t", dir, got, want)
		}
	}
}

func TestMissing_RefusesFiles(t *testing.T) {
	path, _ := absent(t)
	makeAt(t, path)
	for _, below := range []string{"/cgroup.procs", "/cgroup.procs/x", strings.Repeat("/x", 3000)} {
		if list, err := Missing(path + below); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Missing(%q) = %q, %v, want an invalid argument", path+below, list, err)
		}
	}
	if list, err := Missing("/"); err != nil || len(list) > 0 {
		t.Errorf("Missing of the root = %q, %v, want nothing", list, err)
	}
	_, err := missing("/sys/fs/cgroup", filepath.Join(t.TempDir(), "none"), Legacy, path)
	if err == nil {
		t.Error("missing without a list of hierarchies succeeds")
	}
}
