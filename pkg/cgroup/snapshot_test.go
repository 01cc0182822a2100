// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/google/go-cmp/cmp"
)

func TestSnapshot_OfTheKernelsFiles(t *testing.T) {
	c, names, change := snapshotCgroup(t)
	s, err := c.Snapshot(append(names, "memory.no_such_file", "nothing.max", "cgroup.kill"))
	if err != nil {
		t.Fatal(err)
	}
	before := s
	if len(before) != len(names) {
		t.Fatalf("Texts() = %v, want those of %v", before, names)
	}
	for _, file := range change {
		if err := os.WriteFile(c.File(file.name), []byte(file.text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now, err := c.Snapshot(names)
	if err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(before, now) {
		t.Fatalf("Texts() = %v as before, want them changed", before)
	}
	if err := s.Restore(); err != nil {
		t.Errorf("Restore() = %v", err)
	}
	now, err = c.Snapshot(names)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, now); diff != "" {
		t.Errorf("after Restore (-want +got):\n%s", diff)
	}
}

type setting struct{ name, text string }

// snapshotCgroup is a cgroup, files of it that judge each other, and changes that have to be taken back in another
// order than that of the names.
func snapshotCgroup(t *testing.T) (*Cgroup, []string, []setting) {
	t.Helper()
	if cgroups.Mode() == cgroups.Unified {
		c := makeV2(t)
		if _, err := os.Stat(c.File("memory.max")); err != nil {
			lacking(t, "memory", "the memory controller in the cgroup of the test")
		}
		return c, []string{"memory.max", "memory.high", "pids.max"}, []setting{{"memory.max", "67108864"}, {"memory.high", "33554432"}, {"pids.max", "7"}}
	}
	c := makeV1(t)
	limits := []setting{{"memory.limit_in_bytes", "67108864"}, {"memory.memsw.limit_in_bytes", "67108864"}}
	return c, []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control", "pids.max"},
		append(limits, setting{"memory.oom_control", "1"}, setting{"pids.max", "7"})
}

func TestSnapshot_RestoreReportsWhatItCannot(t *testing.T) {
	c := New(map[string]string{"": t.TempDir()})
	for _, name := range []string{"a.max", "b.max"} {
		if err := os.WriteFile(c.File(name), []byte("1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Snapshot([]string{"?.max"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.File("a.max")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.File("b.max"), []byte("2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Restore() without a file = %v, want that it does not exist", err)
	}
	if got, err := os.ReadFile(c.File("b.max")); err != nil || string(got) != "1\n" {
		t.Errorf("the other file = %q, %v, want it restored", got, err)
	}
}

func TestSnapshot_Changes(t *testing.T) {
	for _, tc := range []struct {
		what, file, now, former string
		want                    []string
	}{
		{"a value", "pids.max", "5", "max", []string{"max"}},
		{"no list", "cpuset.cpus", "0", "", []string{""}},
		{"a device of v2 that is new", "io.max", "8:0 rbps=1 wbps=max riops=max wiops=max", "", []string{"8:0 rbps=max wbps=max riops=max wiops=max"}},
		{
			"devices of v2", "io.max", "8:0 rbps=1 wbps=2\n8:16 rbps=3 wbps=4", "8:16 rbps=max wbps=5",
			[]string{"8:0 rbps=max wbps=max", "8:16 rbps=max wbps=5"},
		},
		{"a throttle of v1 that is new", "blkio.throttle.read_bps_device", "7:0 100", "", []string{"7:0 0"}},
		{"a weight of a device that is new", "io.weight", "default 200\n8:0 50", "default 100", []string{"8:0 default", "default 100"}},
		{"a weight of BFQ on v1", "blkio.bfq.weight_device", "8:0 50", "", []string{"8:0 default"}},
		{"interfaces", "net_prio.ifpriomap", "lo 5\neth0 0", "lo 0\neth0 0", []string{"lo 0", "eth0 0"}},
	} {
		if got := changes(tc.file, tc.now, tc.former); !slices.Equal(got, tc.want) {
			t.Errorf("%s: changes(%s, %q, %q) = %q, want %q", tc.what, tc.file, tc.now, tc.former, got, tc.want)
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

// The kernel takes no empty list back while there are tasks.
func TestSnapshot_RestoresAnEmptyCPUSet(t *testing.T) {
	c := makeV2(t)
	file := c.File("cpuset.cpus")
	if _, err := os.Stat(file); err != nil {
		lacking(t, "cpuset2", "the cpuset controller on cgroup v2")
	}
	s, err := c.Snapshot([]string{"cpuset.cpus"})
	if err != nil {
		t.Fatal(err)
	}
	start(t, c, "read x")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(); err != nil {
		t.Fatalf("Restore() = %v", err)
	}
	got, err := os.ReadFile(c.File("cpuset.cpus.effective"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(filepath.Join(filepath.Dir(c.Path("")), "cpuset.cpus.effective"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(all) {
		t.Errorf("cpuset.cpus.effective after Restore() = %q, want the parent's %q", got, all)
	}
}

// A unit of systemd may be named so.
func TestSnapshot_OfACgroupWhoseNameLooksLikeAPattern(t *testing.T) {
	for _, name := range []string{`cri-a\x2db.scope`, "a[1]", "a*"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"memory.max", "hugetlb.2MB.max", "hugetlb.1GB.max", "hugetlb.1GB.current"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte("1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := New(map[string]string{"": dir}).Snapshot([]string{"memory.max", "hugetlb.*.max"})
		if want := 3; len(got) != want || err != nil {
			t.Errorf("snapshot of %q = %v, %v, want %d files", name, got, err, want)
		}
	}
}
