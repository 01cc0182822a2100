// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"path/filepath"
	"testing"

	"github.com/containerd/cgroups/v3/cgroup1"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/internal/testx"
)

// loader reads as containerd-shim-runc-v2 does: cgroup1.Load once, Stat for each request.
func loader(tb testing.TB, c *cgroup.Cgroup) cgroup1.Cgroup {
	tb.Helper()
	path, err := filepath.Rel("/sys/fs/cgroup/memory", c.Path("memory"))
	testx.Must(tb, err)
	load, err := cgroup1.Load(cgroup1.StaticPath("/" + path))
	testx.Must(tb, err)
	return load
}

// theirsV1 is what containerd/cgroups says, as the runc shim asks it.
func theirsV1(tb testing.TB, load cgroup1.Cgroup) *v1.Metrics {
	tb.Helper()
	m, err := load.Stat(cgroup1.IgnoreNotExist)
	testx.Must(tb, err)
	return m
}

func TestV1_MetricsAreThoseOfContainerdCgroups(t *testing.T) {
	c := busy(t, hierarchiesV1(t))
	load, r := loader(t, c), open(t, c)
	got, want := steady(t,
		func() *v1.Metrics { return read[*v1.Metrics](t, r) },
		func() *v1.Metrics { return theirsV1(t, load) })
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("metrics (-containerd/cgroups +ours):\n%s", diff)
	}
	if got.GetCPU().GetUsage().GetTotal() == 0 || got.GetMemory().GetUsage().GetUsage() == 0 || got.GetPids().GetCurrent() != 1 {
		t.Errorf("CPU usage, memory and pids of one process that ran, in %v", got)
	}
}

func TestV1_LimitsAreThoseOfContainerdCgroups(t *testing.T) {
	paths := makeCgroup(t, hierarchiesV1(t))
	control(t, paths["memory"], "memory.limit_in_bytes", "16777216")
	control(t, paths["memory"], "memory.memsw.limit_in_bytes", "33554432")
	control(t, paths["memory"], "memory.kmem.tcp.limit_in_bytes", "1048576")
	control(t, paths["pids"], "pids.max", "7")
	// Less than a turn of the scheduler, so that it is used up on a busy machine too.
	control(t, paths["cpu"], "cpu.cfs_period_us", "5000")
	control(t, paths["cpu"], "cpu.cfs_quota_us", "1000")
	process(t, paths, someWork+"; dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null")
	c := cgroup.New(paths)
	load, r := loader(t, c), open(t, c)
	got, want := steady(t,
		func() *v1.Metrics { return read[*v1.Metrics](t, r) },
		func() *v1.Metrics { return theirsV1(t, load) })
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("metrics (-containerd/cgroups +ours):\n%s", diff)
	}
	for _, tt := range []struct {
		name      string
		got, want uint64
	}{
		{"memory limit", got.GetMemory().GetUsage().GetLimit(), 16 << 20},
		{"memory and swap limit", got.GetMemory().GetSwap().GetLimit(), 32 << 20},
		{"TCP memory limit", got.GetMemory().GetKernelTCP().GetLimit(), 1 << 20},
		{"limit above", got.GetMemory().GetHierarchicalMemoryLimit(), 16 << 20},
		{"pids limit", got.GetPids().GetLimit(), 7},
		{"OOM kills", got.GetMemoryOomControl().GetOomKill(), 1},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
	if got.GetCPU().GetThrottling().GetThrottledPeriods() == 0 || got.GetMemory().GetUsage().GetFailcnt() == 0 {
		t.Errorf("throttled periods, and how often the memory limit was hit: want some in %v", got)
	}
}

// mountedV1 is the cgroup of testdata/v1, which is text of Linux 6.18.
func mountedV1() *cgroup.Cgroup {
	paths := make(map[string]string)
	for _, name := range []string{"memory", "pids", "cpu", "cpuacct", "blkio"} {
		paths[name] = filepath.Join("testdata/v1", name)
	}
	return cgroup.New(paths)
}

func TestV1_TextIsParsedAsContainerdCgroupsDoes(t *testing.T) {
	want := &v1.Metrics{CPU: &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{}}}
	const root = "testdata/v1"
	for _, controller := range []interface {
		Stat(path string, m *v1.Metrics) error
	}{
		cgroup1.NewPids(root), cgroup1.NewCpu(root), cgroup1.NewCpuacct(root), cgroup1.NewMemory(root), cgroup1.NewBlkio(root),
	} {
		testx.Must(t, controller.Stat("/", want))
	}
	got := read[*v1.Metrics](t, open(t, mountedV1()))
	// The name of the device is that of this machine, and theirs has only what /proc/partitions lists.
	names := protocmp.IgnoreFields(&v1.BlkIOEntry{}, "device")
	if diff := cmp.Diff(want, got, protocmp.Transform(), names); diff != "" {
		t.Errorf("metrics (-containerd/cgroups +ours):\n%s", diff)
	}
	if got := got.GetBlkio().GetIoServicedRecursive()[0].GetValue(); got != 8 {
		t.Errorf("reads of the first device: %d, want 8", got)
	}
}

func TestV1_BlockDevicesAreCountedWhereTheKernelCountsThem(t *testing.T) {
	entry := func(op string, value uint64) *v1.BlkIOEntry {
		return &v1.BlkIOEntry{Op: op, Major: 4000, Minor: 1, Value: value}
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  *v1.BlkIOStat
	}{
		{"the throttle policy of old kernels does not count the cgroups below", map[string]string{
			"blkio.throttle.io_serviced": "4000:1 Read 1\nTotal 1\n",
		}, &v1.BlkIOStat{IoServicedRecursive: []*v1.BlkIOEntry{entry("Read", 1)}}},
		{"containerd/cgroups has 1 here: it passes over the cgroups below", map[string]string{
			"blkio.throttle.io_serviced":           "4000:1 Read 1\nTotal 1\n",
			"blkio.throttle.io_serviced_recursive": "4000:1 Read 2\nTotal 2\n",
		}, &v1.BlkIOStat{IoServicedRecursive: []*v1.BlkIOEntry{entry("Read", 2)}}},
		{"containerd/cgroups has nothing here: it does not know BFQ, without which newer kernels count nothing", map[string]string{
			"blkio.throttle.io_service_bytes_recursive": "Total 0\n",
			"blkio.bfq.io_service_bytes_recursive":      "4000:1 Write 3\n4000:1 Total 3\nTotal 3\n",
			"blkio.bfq.sectors_recursive":               "4000:1 4\n",
		}, &v1.BlkIOStat{
			IoServiceBytesRecursive: []*v1.BlkIOEntry{entry("Write", 3), entry("Total", 3)},
			SectorsRecursive:        []*v1.BlkIOEntry{entry("", 4)},
		}},
		{"CFQ counts requests", map[string]string{
			"blkio.throttle.io_serviced":   "4000:1 Sync 9\n",
			"blkio.io_serviced_recursive":  "4000:1 Sync 5\n",
			"blkio.time_recursive":         "4000:1 6\n",
			"blkio.io_wait_time_recursive": "4000:1 Async 7\nTotal 7\n",
		}, &v1.BlkIOStat{
			IoServicedRecursive: []*v1.BlkIOEntry{entry("Sync", 5)},
			IoTimeRecursive:     []*v1.BlkIOEntry{entry("", 6)},
			IoWaitTimeRecursive: []*v1.BlkIOEntry{entry("Async", 7)},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tt.files {
				testx.Write(t, filepath.Join(dir, file), content)
			}
			got := read[*v1.Metrics](t, open(t, cgroup.New(map[string]string{"blkio": dir})))
			if diff := cmp.Diff(&v1.Metrics{Blkio: tt.want}, got, protocmp.Transform()); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestV1_ReadsAnyMountPointAndOnlyExistingFiles(t *testing.T) {
	dir := t.TempDir()
	for file, content := range map[string]string{
		"odd mount/pids.current": "7\n", "odd mount/pids.max": "max\n",
		"cpu,cpuacct/x/cpu.stat":            "nr_periods 3\nnr_throttled 2\nthrottled_time 1\n",
		"huge/hugetlb.2MB.usage_in_bytes":   "4\n",
		"huge/hugetlb.2MB.failcnt":          "5\n",
		"huge/hugetlb.2MB.rsvd.failcnt":     "6\n",
		"huge/hugetlb.1GB.usage_in_bytes":   "8\n",
		"huge/hugetlb.1GB.rsvd.usage_bytes": "9\n",
	} {
		testx.Write(t, filepath.Join(dir, file), content)
	}
	c := cgroup.New(map[string]string{
		"pids": dir + "/odd mount", "cpu": dir + "/cpu,cpuacct/x", "memory": dir + "/removed", "name=systemd": dir,
		"hugetlb": dir + "/huge",
	})
	want := &v1.Metrics{
		Pids:    &v1.PidsStat{Current: 7},
		CPU:     &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{Periods: 3, ThrottledPeriods: 2, ThrottledTime: 1}},
		Hugetlb: []*v1.HugetlbStat{{Pagesize: "1GB", Usage: 8}, {Pagesize: "2MB", Usage: 4, Failcnt: 5}},
	}
	if diff := cmp.Diff(want, read[*v1.Metrics](t, open(t, c)), protocmp.Transform()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
