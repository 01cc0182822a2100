// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup2"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
)

// managerV2 reads as containerd-shim-runc-v2 does.
func managerV2(tb testing.TB, dir string) *cgroup2.Manager {
	tb.Helper()
	m, err := cgroup2.Load("/", cgroup2.WithMountpoint(dir))
	testx.Must(tb, err)
	return m
}

func theirsV2(tb testing.TB, m *cgroup2.Manager) *v2.Metrics {
	tb.Helper()
	metrics, err := m.Stat()
	testx.Must(tb, err)
	return metrics
}

// wantTheirsV2 compares ours with theirs, but for what theirs gets wrong:
//   - memory.workingset_refault and memory.workingset_activate: Linux 5.9 replaced the keys by two each, of which theirs
//     knows none, and so says 0.
//   - the parts of controllers that the cgroup does not have: theirs says that they use nothing, and that the limit is 0.
func wantTheirsV2(tb testing.TB, ours, theirs *v2.Metrics) {
	tb.Helper()
	if m := theirs.GetMemory(); m != nil && ours.GetMemory() != nil {
		m.WorkingsetRefault += ours.GetMemory().GetWorkingsetRefault()
		m.WorkingsetActivate += ours.GetMemory().GetWorkingsetActivate()
	}
	if ours.GetPids() == nil && cmp.Equal(theirs.GetPids(), &v2.PidsStat{}, protocmp.Transform()) {
		theirs.Pids = nil
	}
	if ours.GetMemory() == nil && cmp.Equal(theirs.GetMemory(), &v2.MemoryStat{}, protocmp.Transform()) {
		theirs.Memory = nil
	}
	theirs.Rdma = nil // ours leaves it out
	if ours.GetIo() == nil && cmp.Equal(theirs.GetIo(), &v2.IOStat{}, protocmp.Transform()) {
		theirs.Io = nil
	}
	if ours.GetHugetlb() == nil {
		for _, h := range theirs.GetHugetlb() {
			if h.GetCurrent() != 0 || h.GetMax() != 0 || h.GetFailcnt() != 0 {
				tb.Errorf("huge pages of %s are left out, want %v", h.GetPagesize(), h)
			}
		}
		theirs.Hugetlb = nil
	}
	sorted := protocmp.SortRepeated(func(a, b *v2.HugeTlbStat) bool { return a.GetPagesize() < b.GetPagesize() })
	if diff := cmp.Diff(theirs, ours, protocmp.Transform(), sorted); diff != "" {
		tb.Errorf("metrics (-containerd/cgroups +ours):\n%s", diff)
	}
}

// wantSteadyV2 compares ours with theirs on a live cgroup and returns ours.
func wantSteadyV2(tb testing.TB, c *cgroup.Cgroup) *v2.Metrics {
	tb.Helper()
	manager, r := managerV2(tb, c.Path("")), open(tb, c)
	got, want := steady(tb,
		func() *v2.Metrics { return read[*v2.Metrics](tb, r) },
		func() *v2.Metrics { return theirsV2(tb, manager) })
	wantTheirsV2(tb, got, want)
	return got
}

func TestV2_MetricsAreThoseOfContainerdCgroups(t *testing.T) {
	got := wantSteadyV2(t, busy(t, hierarchyV2(t)))
	if got.GetCPU().GetUsageUsec() == 0 { // counted without any controller
		t.Errorf("CPU usage 0, want some: %v", got)
	}
	if cgroups.Mode() != cgroups.Unified {
		testx.Lacking(t, "cgroup2", "the controllers on cgroup v2; CPU usage and pressure were tested")
	}
	if got.GetPids().GetCurrent() != 1 || got.GetMemory().GetUsage() == 0 {
		t.Errorf("pids %d, memory %d, want 1 and some", got.GetPids().GetCurrent(), got.GetMemory().GetUsage())
	}
	if got.GetPids().GetLimit() != math.MaxUint64 || got.GetMemory().GetUsageLimit() != math.MaxUint64 {
		t.Errorf("limits of pids %d, memory %d, want the largest number for none",
			got.GetPids().GetLimit(), got.GetMemory().GetUsageLimit())
	}
}

func TestV2_LimitsAreThoseOfContainerdCgroups(t *testing.T) {
	paths := makeCgroup(t, unified(t))
	dir := paths[""]
	control(t, dir, "memory.max", "16777216")
	control(t, dir, "memory.swap.max", "0")
	control(t, dir, "pids.max", "7")
	control(t, dir, "cpu.max", "1000 5000")
	process(t, paths, someWork+"; dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null")
	got := wantSteadyV2(t, cgroup.New(paths))
	for _, tt := range []struct {
		name      string
		got, want uint64
	}{
		{"memory limit", got.GetMemory().GetUsageLimit(), 16 << 20},
		{"swap limit", got.GetMemory().GetSwapLimit(), 0},
		{"pids limit", got.GetPids().GetLimit(), 7},
		{"OOM kills", got.GetMemoryEvents().GetOomKill(), 1},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
	if got.GetCPU().GetNrThrottled() == 0 || got.GetMemoryEvents().GetMax() == 0 {
		t.Errorf("throttled periods, and how often the memory limit was hit: want some in %v", got)
	}
}

func TestV2_ControllersComeAndGo(t *testing.T) {
	parent := makeCgroup(t, unified(t))
	child := makeCgroup(t, parent)
	r := open(t, cgroup.New(child))
	for _, tt := range []struct {
		change                 string
		dir, file, value       string
		pids, memory, pressure bool
	}{
		{"nothing", child[""], "cgroup.pressure", "1", false, false, true},
		{"pids comes", parent[""], "cgroup.subtree_control", "+pids", true, false, true},
		{"memory comes", parent[""], "cgroup.subtree_control", "+memory", true, true, true},
		{"pressure goes", child[""], "cgroup.pressure", "0", true, true, false},
		{"pressure comes", child[""], "cgroup.pressure", "1", true, true, true},
		{"pids goes", parent[""], "cgroup.subtree_control", "-pids", false, true, true},
		{"pids goes and comes", parent[""], "cgroup.subtree_control", "+pids", true, true, true},
	} {
		if _, err := os.Stat(filepath.Join(tt.dir, tt.file)); errors.Is(err, os.ErrNotExist) {
			t.Logf("%s: not tried, since there is no %s before Linux 6.1", tt.change, tt.file)
			continue
		}
		control(t, tt.dir, tt.file, tt.value)
		m := read[*v2.Metrics](t, r)
		got := [3]bool{m.GetPids() != nil, m.GetMemory() != nil, m.GetCPU().GetPSI() != nil}
		if want := [3]bool{tt.pids, tt.memory, tt.pressure}; got != want {
			t.Errorf("%s: has pids, memory, pressure = %v, want %v", tt.change, got, want)
		}
	}
}

// testdataV2 is the cgroup of testdata/v2, which is text of Linux 6.1.
func testdataV2() *cgroup.Cgroup { return cgroup.New(map[string]string{"": "testdata/v2"}) }

func TestV2_TextIsParsedAsContainerdCgroupsDoes(t *testing.T) {
	got := read[*v2.Metrics](t, open(t, testdataV2()))
	want := theirsV2(t, managerV2(t, "testdata/v2"))
	want.Hugetlb = got.GetHugetlb() // theirs looks for the sizes of this machine
	wantTheirsV2(t, got, want)
	for _, tt := range []struct {
		name      string
		got, want uint64
	}{
		{"pids", got.GetPids().GetCurrent(), 1},
		{"pids limit", got.GetPids().GetLimit(), 30},
		{"CPU usage", got.GetCPU().GetUsageUsec(), 2061398},
		{"time in bursts", got.GetCPU().GetBurstUsec(), 5000},
		{"CPU pressure", got.GetCPU().GetPSI().GetFull().GetTotal(), 7110382},
		{"memory peak", got.GetMemory().GetMaxUsage(), number(t, "testdata/v2", "memory.peak")},
		{"unlimited swap", got.GetMemory().GetSwapLimit(), math.MaxUint64},
		{"refaults of files and anonymous memory", got.GetMemory().GetWorkingsetRefault(), 22},
		{"OOM kills", got.GetMemoryEvents().GetOomKill(), 1},
		{"bytes written to the second device", got.GetIo().GetUsage()[1].GetWbytes(), 1048576},
		{"limit of huge pages", got.GetHugetlb()[0].GetMax(), math.MaxUint64},
		{"sizes of huge pages", uint64(len(got.GetHugetlb())), 1},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
	if got := got.GetCPU().GetPSI().GetSome(); got.GetAvg10() != 31.62 || got.GetAvg60() != 9.32 || got.GetAvg300() != 2.11 {
		t.Errorf("CPU pressure %v, want 31.62, 9.32 and 2.11", got)
	}
}

func TestV2_ReadsOnlyExistingFiles(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  *v2.Metrics
	}{
		{"pressure of memory without the controller", map[string]string{
			"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		}, &v2.Metrics{}},
		{"pressure of I/O without the controller", map[string]string{
			"io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
		}, &v2.Metrics{Io: &v2.IOStat{PSI: &v2.PSIStats{Some: &v2.PSIData{Total: 1}}}}},
		{"the root", map[string]string{
			"memory.stat": "anon 1\n", "cpu.stat": "usage_usec 2\n", "io.stat": "1:1 \n",
		}, &v2.Metrics{
			CPU: &v2.CPUStat{UsageUsec: 2}, Memory: &v2.MemoryStat{Anon: 1}, Io: &v2.IOStat{Usage: []*v2.IOEntry{{Major: 1, Minor: 1}}},
		}},
		{"devices in one line, which containerd/cgroups takes for the first of them", map[string]string{
			"io.stat": "7:0 7:1 8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.new=x\n8:16 rbytes=7\n",
		}, &v2.Metrics{Io: &v2.IOStat{Usage: []*v2.IOEntry{
			{Major: 8, Minor: 0, Rbytes: 1, Wbytes: 2, Rios: 3, Wios: 4}, {Major: 8, Minor: 16, Rbytes: 7},
		}}}},
		{"memory of old kernels", map[string]string{
			"memory.stat": "workingset_refault 3\nworkingset_activate 4\n", "memory.current": "5\n", "memory.max": "max\n",
		}, &v2.Metrics{Memory: &v2.MemoryStat{WorkingsetRefault: 3, WorkingsetActivate: 4, Usage: 5, UsageLimit: math.MaxUint64}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tt.files {
				testx.Write(t, filepath.Join(dir, file), content)
			}
			got := read[*v2.Metrics](t, open(t, cgroup.New(map[string]string{"": dir})))
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReader_ReadsAFileThatOutgrowsTheBuffer(t *testing.T) {
	dir := t.TempDir()
	const devices = 1000
	var text []byte
	for range devices {
		text = append(text, "8:0 rbytes=18446744073709551615 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n"...)
	}
	testx.Write(t, filepath.Join(dir, "io.stat"), string(text))
	m := read[*v2.Metrics](t, open(t, cgroup.New(map[string]string{"": dir})))
	if got := len(m.GetIo().GetUsage()); got != devices {
		t.Errorf("%d devices, want %d", got, devices)
	}
}
