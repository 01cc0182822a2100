// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestMerge(t *testing.T) {
	before := cgroups.Resources{
		Memory: 64 << 20, MemorySwap: 128 << 20, MemoryReservation: 32 << 20, CpuShares: 512, CpuWeight: 20, CpuQuota: 5000, CpuPeriod: 10000,
		CpusetCpus: "0-1", CpusetMems: "0", PidsLimit: new(int64(10)), BlkioWeight: 100, Unified: map[string]string{"a": "1", "b": "2"},
	}
	for _, tc := range []struct {
		name    string
		r       specs.LinuxResources
		touched cgroups.Resources
		change  func(next *cgroups.Resources) // from before to next
	}{
		{"nothing", specs.LinuxResources{}, cgroups.Resources{}, func(*cgroups.Resources) {}},
		{
			"a memory limit alone keeps the swap limit",
			specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(96 << 20))}},
			cgroups.Resources{Memory: 96 << 20, MemorySwap: 128 << 20, MemoryReservation: 32 << 20},
			func(n *cgroups.Resources) { n.Memory = 96 << 20 },
		},
		{
			"no memory limit takes the swap limit away too",
			specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(-1))}},
			cgroups.Resources{Memory: -1, MemorySwap: -1, MemoryReservation: 32 << 20},
			func(n *cgroups.Resources) { n.Memory, n.MemorySwap = -1, -1 },
		},
		{
			"no memory limit with a swap limit is left to the kernel",
			specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(-1)), Swap: new(int64(7))}},
			cgroups.Resources{Memory: -1, MemorySwap: 7, MemoryReservation: 32 << 20},
			func(n *cgroups.Resources) { n.Memory, n.MemorySwap = -1, 7 },
		},
		{
			"check before update",
			specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(1)), CheckBeforeUpdate: new(true)}},
			cgroups.Resources{Memory: 1, MemorySwap: 128 << 20, MemoryReservation: 32 << 20, MemoryCheckBeforeUpdate: true},
			func(n *cgroups.Resources) { n.Memory, n.MemoryCheckBeforeUpdate = 1, true },
		},
		{
			"shares",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(1024))}},
			cgroups.Resources{CpuShares: 1024, CpuWeight: cgroups.ConvertCPUSharesToCgroupV2Value(1024)},
			func(n *cgroups.Resources) {
				n.CpuShares, n.CpuWeight = 1024, cgroups.ConvertCPUSharesToCgroupV2Value(1024)
			},
		},
		{
			"a quota goes with the period that stands",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(7000))}},
			cgroups.Resources{CpuQuota: 7000, CpuPeriod: 10000},
			func(n *cgroups.Resources) { n.CpuQuota = 7000 },
		},
		{
			"a period goes with the quota that stands",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Period: new(uint64(20000))}},
			cgroups.Resources{CpuQuota: 5000, CpuPeriod: 20000},
			func(n *cgroups.Resources) { n.CpuPeriod = 20000 },
		},
		{
			"a burst goes with both",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Burst: new(uint64(3))}},
			cgroups.Resources{CpuQuota: 5000, CpuPeriod: 10000, CpuBurst: new(uint64(3))},
			func(n *cgroups.Resources) { n.CpuBurst = new(uint64(3)) },
		},
		{
			"real-time",
			specs.LinuxResources{CPU: &specs.LinuxCPU{RealtimeRuntime: new(int64(3)), RealtimePeriod: new(uint64(4))}},
			cgroups.Resources{CpuRtRuntime: 3, CpuRtPeriod: 4},
			func(n *cgroups.Resources) { n.CpuRtRuntime, n.CpuRtPeriod = 3, 4 },
		},
		{
			"idle",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Idle: new(int64(1))}},
			cgroups.Resources{CPUIdle: new(int64(1))},
			func(n *cgroups.Resources) { n.CPUIdle = new(int64(1)) },
		},
		{
			"cpus alone",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "1"}},
			cgroups.Resources{CpusetCpus: "1"},
			func(n *cgroups.Resources) { n.CpusetCpus = "1" },
		},
		{
			"mems alone",
			specs.LinuxResources{CPU: &specs.LinuxCPU{Mems: "1"}},
			cgroups.Resources{CpusetMems: "1"},
			func(n *cgroups.Resources) { n.CpusetMems = "1" },
		},
		{
			"pids",
			specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(-1))}},
			cgroups.Resources{PidsLimit: new(int64(-1))},
			func(n *cgroups.Resources) { n.PidsLimit = new(int64(-1)) },
		},
		{
			"weight of block devices",
			specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{Weight: new(uint16(200))}},
			cgroups.Resources{BlkioWeight: 200},
			func(n *cgroups.Resources) { n.BlkioWeight = 200 },
		},
		{
			"huge pages",
			specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4}}},
			cgroups.Resources{HugetlbLimit: []*cgroups.HugepageLimit{{Pagesize: "2MB", Limit: 4}}},
			nil,
		},
		{
			"files of version 2",
			specs.LinuxResources{Unified: map[string]string{"b": "3", "c": "4"}},
			cgroups.Resources{Unified: map[string]string{"b": "3", "c": "4"}},
			func(n *cgroups.Resources) { n.Unified = map[string]string{"a": "1", "b": "3", "c": "4"} },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next, touched := before, cgroups.Resources{}
			merge(&next, &touched, &tc.r)
			if diff := cmp.Diff(tc.touched, touched); diff != "" {
				t.Errorf("touched (-want +got):\n%s", diff)
			}
			if tc.change != nil {
				want := before
				tc.change(&want)
				if diff := cmp.Diff(want, next); diff != "" {
					t.Errorf("next (-want +got):\n%s", diff)
				}
			}
			if before.Unified["b"] != "2" || *before.PidsLimit != 10 {
				t.Errorf("merge changed what stood before: %+v", before)
			}
		})
	}
}

func TestFormer(t *testing.T) {
	before := &cgroups.Resources{
		Memory: 64, MemorySwap: 128, MemoryReservation: 32, CpuShares: 512, CpuWeight: 20, CpuQuota: 5000, CpuPeriod: 10000, CpuBurst: new(uint64(1)),
		CpusetCpus: "0-1", CpusetMems: "0", PidsLimit: new(int64(10)), BlkioWeight: 100, BlkioLeafWeight: 50, CPUIdle: new(int64(1)), CpuRtRuntime: 3, CpuRtPeriod: 4,
		Unified: map[string]string{"memory.high": "1", "memory.low": "2"},
	}
	none := &cgroups.Resources{}
	for _, tc := range []struct {
		name                  string
		before, touched, want *cgroups.Resources
	}{
		{"nothing", before, &cgroups.Resources{}, &cgroups.Resources{}},
		{"memory", before, &cgroups.Resources{Memory: 1}, &cgroups.Resources{Memory: 64, MemorySwap: 128, MemoryReservation: 32}},
		{"memory without a limit before", none, &cgroups.Resources{Memory: 1}, &cgroups.Resources{Memory: -1, MemorySwap: -1, MemoryReservation: -1}},
		{"shares", before, &cgroups.Resources{CpuShares: 1}, &cgroups.Resources{CpuShares: 512, CpuWeight: cgroups.ConvertCPUSharesToCgroupV2Value(512)}},
		{"shares not set before", none, &cgroups.Resources{CpuShares: 1}, &cgroups.Resources{CpuShares: 1024, CpuWeight: cgroups.ConvertCPUSharesToCgroupV2Value(1024)}},
		{"quota", before, &cgroups.Resources{CpuQuota: 1}, &cgroups.Resources{CpuQuota: 5000, CpuPeriod: 10000, CpuBurst: new(uint64(1))}},
		{"quota not set before", none, &cgroups.Resources{CpuQuota: 1}, &cgroups.Resources{CpuQuota: -1, CpuPeriod: 100000}},
		{"burst not set before", none, &cgroups.Resources{CpuBurst: new(uint64(1))}, &cgroups.Resources{CpuQuota: -1, CpuPeriod: 100000, CpuBurst: new(uint64(0))}},
		{"cpuset", before, &cgroups.Resources{CpusetCpus: "1", CpusetMems: "1"}, &cgroups.Resources{CpusetCpus: "0-1", CpusetMems: "0"}},
		{"pids", before, &cgroups.Resources{PidsLimit: new(int64(1))}, &cgroups.Resources{PidsLimit: new(int64(10))}},
		{"pids without a limit before", none, &cgroups.Resources{PidsLimit: new(int64(1))}, &cgroups.Resources{PidsLimit: new(int64(-1))}},
		{"weights of block devices", before, &cgroups.Resources{BlkioWeight: 1, BlkioLeafWeight: 1}, &cgroups.Resources{BlkioWeight: 100, BlkioLeafWeight: 50}},
		{"idle", before, &cgroups.Resources{CPUIdle: new(int64(0))}, &cgroups.Resources{CPUIdle: new(int64(1))}},
		{"idle not set before", none, &cgroups.Resources{CPUIdle: new(int64(1))}, &cgroups.Resources{CPUIdle: new(int64(0))}},
		{"real-time", before, &cgroups.Resources{CpuRtRuntime: 1, CpuRtPeriod: 1}, &cgroups.Resources{CpuRtRuntime: 3, CpuRtPeriod: 4}},
		{"files of version 2", before, &cgroups.Resources{Unified: map[string]string{"memory.high": "9"}}, &cgroups.Resources{Unified: map[string]string{"memory.high": "1"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.SkipDevices = true
			if tc.before == before && tc.want.CpuWeight != 0 {
				tc.want.CpuWeight = 20 // what was asked for, not what follows from the shares
			}
			if diff := cmp.Diff(tc.want, former(tc.before, tc.touched)); diff != "" {
				t.Errorf("former (-want +got):\n%s", diff)
			}
		})
	}
}

// value reads a file of the container's cgroup on version 1.
func value(t *testing.T, b *box, controller, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.Cgroup().Path(controller), file))
	must(t, err)
	return strings.TrimSpace(string(data))
}

func TestUpdateOnVersionOne(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err != nil {
		t.Skip("the memory controller is not on cgroup version 1")
	}
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))}, Pids: &specs.LinuxPids{Limit: new(int64(20))}}
	b := create(t, c).start()
	wantValues := func(memory, pids, shares string) {
		t.Helper()
		got := [...]string{value(t, b, "memory", "memory.limit_in_bytes"), value(t, b, "pids", "pids.max"), value(t, b, "cpu", "cpu.shares")}
		if want := [...]string{memory, pids, shares}; got != want {
			t.Errorf("memory, pids, shares = %v, want %v", got, want)
		}
	}
	wantValues("67108864", "20", "1024")
	must(t, b.Update(&specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(512))}}))
	wantValues("67108864", "20", "512")
	// Another's value stays when it is not named.
	must(t, os.WriteFile(filepath.Join(b.Cgroup().Path("pids"), "pids.max"), []byte("33"), 0o600))
	must(t, b.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(32 << 20))}}))
	wantValues("33554432", "33", "512")
	// One that the kernel refuses leaves the others as they were.
	err := b.Update(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: new(int64(48 << 20))}, Pids: &specs.LinuxPids{Limit: new(int64(44))},
		CPU: &specs.LinuxCPU{Shares: new(uint64(256)), Cpus: "4095"},
	})
	if err == nil {
		t.Error("Update with a CPU that does not exist succeeded")
	}
	wantText(t, err, "4095")
	if got := value(t, b, "memory", "memory.limit_in_bytes"); got != "33554432" {
		t.Errorf("memory limit after the refusal = %s, want 33554432", got)
	}
	if got := value(t, b, "cpu", "cpu.shares"); got != "512" {
		t.Errorf("shares after the refusal = %s, want 512", got)
	}
	must(t, b.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(-1))}}))
	if got := value(t, b, "memory", "memory.limit_in_bytes"); len(got) < 16 {
		t.Errorf("memory limit = %s, want none", got)
	}
}
