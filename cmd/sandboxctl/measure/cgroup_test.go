// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes the files of a cgroup.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

func TestRead_ReadsCgroupV2(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c1")
	write(t, dir, map[string]string{
		"cpu.stat":              "usage_usec 3000\nuser_usec 2000\nsystem_usec 1000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 500\n",
		"cpu.max":               "150000 100000\n",
		"memory.current":        "10000\n",
		"memory.stat":           "anon 1\nfile 2\nactive_file 5\ninactive_file 4000\n",
		"memory.max":            "max\n",
		"memory.events":         "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n",
		"pids.current":          "5\n",
		"pids.max":              "100\n",
		"cpuset.cpus.effective": "0-2,5\n",
		"cpuset.mems.effective": "0\n",
		"cpu.pressure":          "some avg10=1.50 avg60=0.00 avg300=0.00 total=2000\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1000\n",
		"io.pressure":           "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	})
	got, ok := Read(map[string]string{"": dir})
	want := Usage{
		Cgroup: dir, CPU: 3 * time.Millisecond, CPULimit: 1.5,
		Periods: 10, Throttled: 4, Waited: 500 * time.Microsecond, Memory: 6000, OOMKills: 3, Pids: 5, PidsLimit: 100,
		CPUs: "0-2,5", Mems: "0",
		Pressure: Pressure{
			CPU: &PSI{Some10: 1.5, Full10: 0.25}, IO: &PSI{},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("read, %t, want what the files say (-want +got):\n%s", ok, diff)
	}
}

func TestRead_ReadsCgroupV1(t *testing.T) {
	root := t.TempDir()
	dirs := map[string]string{}
	for controller, files := range map[string]map[string]string{
		"cpuacct": {"cpuacct.usage": "4000000\n", "cpuacct.stat": "user 3\nsystem 1\n"},
		"cpu":     {"cpu.stat": "nr_periods 8\nnr_throttled 2\nthrottled_time 700\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"},
		"memory": {
			"memory.usage_in_bytes": "9000\n", "memory.limit_in_bytes": "9223372036854771712\n",
			"memory.stat":        "inactive_file 1\ntotal_inactive_file 1000\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		},
		"pids":   {"pids.current": "2\n", "pids.max": "max\n"},
		"cpuset": {"cpuset.effective_cpus": "0-1\n", "cpuset.effective_mems": "0\n"},
	} {
		dirs[controller] = filepath.Join(root, controller, "c1")
		write(t, dirs[controller], files)
	}
	got, ok := Read(dirs)
	want := Usage{
		Cgroup: dirs["memory"], CPU: 4 * time.Millisecond,
		Periods: 8, Throttled: 2, Waited: 700, Memory: 8000, OOMKills: 1, Pids: 2, CPUs: "0-1", Mems: "0",
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("read, %t, want what the files say (-want +got):\n%s", ok, diff)
	}
}

// A controller that is absent is not one that counts 0.
func TestRead_WhatIsAbsentIsUnknown(t *testing.T) {
	root := t.TempDir()
	for name, tc := range map[string]struct {
		files map[string]string
		v2    bool
		want  Unknown
	}{
		"v2 with cpu alone": {
			files: map[string]string{"cpu.stat": "usage_usec 3\nuser_usec 2\nsystem_usec 1\nnr_periods 0\n"},
			v2:    true, want: Unknown{Memory: true, OOMKills: true, Pids: true},
		},
		"v2 without cpu": {
			files: map[string]string{
				"cpu.stat": "usage_usec 3\nuser_usec 2\nsystem_usec 1\n", "memory.current": "1\n", "memory.stat": "inactive_file 0\n",
				"memory.events": "oom_kill 0\n", "pids.current": "0\n",
			},
			v2: true, want: Unknown{Throttling: true},
		},
		"v1 with cpuacct alone": {
			files: map[string]string{"cpuacct.usage": "3\n", "cpuacct.stat": "user 1\nsystem 1\n"},
			want:  Unknown{Throttling: true, Memory: true, OOMKills: true, Pids: true},
		},
		"v1 with half of memory": {
			files: map[string]string{"memory.usage_in_bytes": "3\n"},
			want:  Unknown{CPU: true, Throttling: true, Memory: true, OOMKills: true, Pids: true},
		},
	} {
		dir := filepath.Join(root, name)
		write(t, dir, tc.files)
		dirs := map[string]string{"cpu": dir, "cpuacct": dir, "memory": dir}
		if tc.v2 {
			dirs = map[string]string{"": dir}
		}
		if got, ok := Read(dirs); got.Unknown != tc.want || got.Memory != 0 && tc.want.Memory || !ok {
			t.Errorf("%s: read = %+v, %t, want %+v to be unknown", name, got, ok, tc.want)
		}
	}
}

func TestHierarchies_BelowIsTheContainersOwn(t *testing.T) {
	root := t.TempDir()
	h := Hierarchies{}
	ofProcess := map[string]string{}
	for _, name := range []string{"memory", "cpu", "pids"} {
		h[name] = filepath.Join(root, name)
		ofProcess[name] = filepath.Join(h[name], "pod/c1/init.scope") // where systemd in the container is
		write(t, ofProcess[name], nil)
	}
	must(t, os.RemoveAll(filepath.Join(root, "pids/pod/c1")))
	got := h.Below(filepath.Join(root, "memory/pod/c1"), ofProcess)
	want := maps.Clone(ofProcess)
	want["memory"], want["cpu"] = filepath.Join(root, "memory/pod/c1"), filepath.Join(root, "cpu/pod/c1")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("below (-want +got):\n%s", diff)
	}
}

func TestParseStat_NameMayHaveAnything(t *testing.T) {
	p, err := ParseProcess([]byte("7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 3 4 0 0 20 0 1 0 500 1000 6 18446744073709551615 1 1\n"))
	want := Process{Name: "a) b (c", Parent: 1, CPU: 70 * time.Millisecond, RSS: 6 * uint64(os.Getpagesize()), Starts: 5 * time.Second}
	if err != nil || p != want {
		t.Errorf("ParseProcess = %+v, %v, want %+v", p, err, want)
	}
	for _, text := range []string{"", "7 (a", "7 a) S", ")(", "7 (a) S 1"} {
		if _, err := ParseProcess([]byte(text)); err == nil {
			t.Errorf("ParseProcess(%q) succeeded", text)
		}
	}
}

// What a process writes into its name is read without a panic.
func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 3 4 0 0 20 0 1 0 500 1000 6 1 1 1\n"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = ParseProcess(text) })
}
