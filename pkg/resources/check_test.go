// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/resources"
)

func host(tb testing.TB, unified bool) resources.Host {
	tb.Helper()
	cpus, err := cpuset.Parse("0-3")
	testx.Must(tb, err)
	nodes, err := cpuset.Parse("0")
	testx.Must(tb, err)
	return resources.Host{Unified: unified, CPUs: cpus, Nodes: nodes, PageSizes: []string{"1GB", "2MB"}}
}

func ofMemory(m specs.LinuxMemory) specs.LinuxResources { return specs.LinuxResources{Memory: &m} }
func ofCPU(c specs.LinuxCPU) specs.LinuxResources       { return specs.LinuxResources{CPU: &c} }
func ofBlockIO(b specs.LinuxBlockIO) specs.LinuxResources {
	return specs.LinuxResources{BlockIO: &b}
}

func TestCheck_Refuses(t *testing.T) {
	device := func(major, minor int64) specs.LinuxBlockIODevice {
		return specs.LinuxBlockIODevice{Major: major, Minor: minor}
	}
	for _, tc := range []struct {
		name string
		r    specs.LinuxResources
		want string // the whole message, without linux.resources and the class
	}{
		{"a negative memory limit", ofMemory(specs.LinuxMemory{Limit: new(int64(-5))}), "memory.limit -5: must be at least 0, or -1 for no limit"},
		{"a negative reservation", ofMemory(specs.LinuxMemory{Reservation: new(int64(-2))}), "memory.reservation -2: must be at least 0, or -1 for no limit"},
		{"a negative swap", ofMemory(specs.LinuxMemory{Swap: new(int64(-2))}), "memory.swap -2: must be at least 0, or -1 for no limit"},
		{"a negative limit of TCP", ofMemory(specs.LinuxMemory{KernelTCP: new(int64(-2))}), "memory.kernelTCP -2: must be at least 0, or -1 for no limit"},
		{"swap without a limit", ofMemory(specs.LinuxMemory{Swap: new(int64(9))}), "memory.swap 9: limits memory and swap together, so memory.limit must be set too"},
		{
			"swap below the limit", ofMemory(specs.LinuxMemory{Limit: new(int64(10)), Swap: new(int64(9))}),
			"memory.swap 9: limits memory and swap together, must be at least memory.limit 10, or -1 for no limit",
		},
		{"swappiness", ofMemory(specs.LinuxMemory{Swappiness: new(uint64(101))}), "memory.swappiness 101: must be from 0 to 100"},
		{"a quota below 1 ms", ofCPU(specs.LinuxCPU{Quota: new(int64(999))}), "cpu.quota 999: must be at least 1000 µs, 0 (unset), or -1 for no limit"},
		{"a short period", ofCPU(specs.LinuxCPU{Period: new(uint64(999))}), "cpu.period 999: must be 0 (unset) or from 1000 to 1000000 µs"},
		{"a long period", ofCPU(specs.LinuxCPU{Period: new(uint64(1000001))}), "cpu.period 1000001: must be 0 (unset) or from 1000 to 1000000 µs"},
		{"a burst above the quota", ofCPU(specs.LinuxCPU{Quota: new(int64(2000)), Burst: new(uint64(2001))}), "cpu.burst 2001: must be at most cpu.quota 2000"},
		{"idle", ofCPU(specs.LinuxCPU{Idle: new(int64(2))}), "cpu.idle 2: must be 0 or 1"},
		{
			"real-time beyond its period", ofCPU(specs.LinuxCPU{RealtimeRuntime: new(int64(3)), RealtimePeriod: new(uint64(2))}),
			"cpu.realtimeRuntime 3: must be at most cpu.realtimePeriod 2",
		},
		{"no list of CPUs", ofCPU(specs.LinuxCPU{Cpus: "0-"}), `cpu.cpus "0-": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`},
		{"a CPU that does not exist", ofCPU(specs.LinuxCPU{Cpus: "2-4,9"}), `cpu.cpus "2-4,9": 4,9 does not exist here, must be among 0-3`},
		{"no list of nodes", ofCPU(specs.LinuxCPU{Mems: "x"}), `cpu.mems "x": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`},
		{"a node that does not exist", ofCPU(specs.LinuxCPU{Mems: "1"}), `cpu.mems "1": 1 does not exist here, must be among 0`},
		{"a small weight", ofBlockIO(specs.LinuxBlockIO{Weight: new(uint16(9))}), "blockIO.weight 9: must be 0 (unset) or from 10 to 1000"},
		{"a large leaf weight", ofBlockIO(specs.LinuxBlockIO{LeafWeight: new(uint16(1001))}), "blockIO.leafWeight 1001: must be 0 (unset) or from 10 to 1000"},
		{
			"a weight of a device", ofBlockIO(specs.LinuxBlockIO{WeightDevice: []specs.LinuxWeightDevice{{}, {Weight: new(uint16(1))}}}),
			"blockIO.weightDevice[1].weight 1: must be 0 (unset) or from 10 to 1000",
		},
		{
			"a leaf weight of a device", ofBlockIO(specs.LinuxBlockIO{WeightDevice: []specs.LinuxWeightDevice{{LeafWeight: new(uint16(1))}}}),
			"blockIO.weightDevice[0].leafWeight 1: must be 0 (unset) or from 10 to 1000",
		},
		{
			"a weight of no device", ofBlockIO(specs.LinuxBlockIO{WeightDevice: []specs.LinuxWeightDevice{{LinuxBlockIODevice: device(-1, 0)}}}),
			"blockIO.weightDevice[0].major -1: must be from 0 to 4294967295",
		},
		{
			"a throttle of no device", ofBlockIO(specs.LinuxBlockIO{ThrottleWriteIOPSDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: device(8, -1)}}}),
			"blockIO.throttleWriteIOPSDevice[0].minor -1: must be from 0 to 4294967295",
		},
		{
			"a page size of another form",
			specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2M"}}},
			`hugepageLimits[0].pageSize "2M": must be a number and KB, MB or GB, such as 2MB`,
		},
		{
			"a page size that the kernel lacks",
			specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}, {Pagesize: "64KB"}}},
			`hugepageLimits[1].pageSize "64KB": must be one that this kernel has: 1GB, 2MB`,
		},
		{"rdma without a device", specs.LinuxResources{Rdma: map[string]specs.LinuxRdma{"a b": {}}}, `rdma["a b"] "": must be the name of a device, without blanks`},
		{
			"a priority of no interface",
			specs.LinuxResources{Network: &specs.LinuxNetwork{Priorities: []specs.LinuxInterfacePriority{{}}}},
			`network.priorities[0].name "": must be the name of an interface, without blanks`,
		},
		{"a device type", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Type: "u", Access: "r"}}}, `devices[0].type "u": must be a, b, c, or empty for a`},
		{"no device access", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{}}}, `devices[0].access "": must be some of r, w and m`},
		{"a device access", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwx"}}}, `devices[0].access "rwx": must be some of r, w and m`},
		{
			"a device number",
			specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "r", Major: new(int64(1)), Minor: new(int64(-2))}}},
			"devices[0].minor -2: must be from -1 to 4294967295",
		},
		{"a path as a key", specs.LinuxResources{Unified: map[string]string{"../memory.max": "1"}}, `unified["../memory.max"] "1": the key must be the name of a control file, such as memory.high`},
		{"a key of no controller", specs.LinuxResources{Unified: map[string]string{"..": "1"}}, `unified[".."] "1": the key must be the name of a control file, such as memory.high`},
		{"a CPU that no kernel has, by a file", specs.LinuxResources{Unified: map[string]string{"cpuset.cpus": "0-4294967295"}}, `unified["cpuset.cpus"] "0-4294967295": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`},
		{"a word for nodes, by a file", specs.LinuxResources{Unified: map[string]string{"cpuset.mems": "some"}}, `unified["cpuset.mems"] "some": must be numbers and ranges of them from 0 to 8191, such as 0-3,7`},
		{"a key without a dot", specs.LinuxResources{Unified: map[string]string{"memory": "1"}}, `unified["memory"] "1": the key must be the name of a control file, such as memory.high`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantRefused(t, resources.Check(&tc.r, host(t, true)), tc.want)
		})
	}
	for _, shares := range []uint64{1, 262145} {
		r := ofCPU(specs.LinuxCPU{Shares: &shares})
		want := fmt.Sprintf("cpu.shares %d: must be 0 (unset) or from 2 to 262144", shares)
		wantRefused(t, resources.Check(&r, host(t, false)), want)
		if err := resources.Check(&r, host(t, true)); err != nil { // it becomes a weight
			t.Errorf("Check of %d shares on v2 = %v, want none", shares, err)
		}
	}
	v1 := specs.LinuxResources{Unified: map[string]string{"memory.high": "1"}}
	wantRefused(t, resources.Check(&v1, host(t, false)), `unified["memory.high"] "1": needs cgroup v2, and this machine has v1`)
}

func wantRefused(t *testing.T, err error, want string) {
	t.Helper()
	if want := "linux.resources." + want + ": invalid argument"; err == nil || err.Error() != want || !errdefs.IsInvalidArgument(err) {
		t.Errorf("Check = %v, want %s", err, want)
	}
}

// What clients send where nothing is asked for, or where they ask for the extremes.
func TestCheck_Accepts(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    specs.LinuxResources
	}{
		{"nothing", specs.LinuxResources{}},
		{"empty parts", specs.LinuxResources{
			Memory: &specs.LinuxMemory{}, CPU: &specs.LinuxCPU{}, Pids: &specs.LinuxPids{}, BlockIO: &specs.LinuxBlockIO{}, Network: &specs.LinuxNetwork{},
		}},
		{"zeros", specs.LinuxResources{
			Memory:  &specs.LinuxMemory{Limit: new(int64), Reservation: new(int64), Swap: new(int64), KernelTCP: new(int64), Swappiness: new(uint64), DisableOOMKiller: new(bool)},
			CPU:     &specs.LinuxCPU{Shares: new(uint64), Quota: new(int64), Period: new(uint64), Burst: new(uint64), RealtimeRuntime: new(int64), RealtimePeriod: new(uint64), Idle: new(int64)},
			Pids:    &specs.LinuxPids{Limit: new(int64)},
			BlockIO: &specs.LinuxBlockIO{Weight: new(uint16), LeafWeight: new(uint16), WeightDevice: []specs.LinuxWeightDevice{{}}},
			Network: &specs.LinuxNetwork{ClassID: new(uint32)},
		}},
		{"no limits", specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: new(int64(-1)), Reservation: new(int64(-1)), Swap: new(int64(-1))},
			CPU:    &specs.LinuxCPU{Quota: new(int64(-1)), RealtimeRuntime: new(int64(-1))}, Pids: &specs.LinuxPids{Limit: new(int64(-1))},
		}},
		{"swap off", ofMemory(specs.LinuxMemory{Limit: new(int64(64)), Swap: new(int64(64))})},
		{"any swap with a limit", ofMemory(specs.LinuxMemory{Limit: new(int64(64)), Swap: new(int64(-1))})},
		{"swappiness of a client that has it signed", ofMemory(specs.LinuxMemory{Swappiness: new(uint64(math.MaxUint64))})},
		{"the least and the most shares", ofCPU(specs.LinuxCPU{Shares: new(uint64(2))})},
		{"the most shares", ofCPU(specs.LinuxCPU{Shares: new(uint64(262144))})},
		{"the least quota in the longest period", ofCPU(specs.LinuxCPU{Quota: new(int64(1000)), Period: new(uint64(1000000)), Burst: new(uint64(1000))})},
		{"a burst without a quota", ofCPU(specs.LinuxCPU{Burst: new(uint64(5))})},
		{"lists", ofCPU(specs.LinuxCPU{Cpus: "0-1, 3", Mems: "0"})},
		{"huge pages that are forbidden", specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}}}},
		{"the rule with which CRI begins", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}},
		{"a wildcard", specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Type: "c", Major: new(int64(-1)), Minor: new(int64(-1)), Access: "m"}}}},
		{"files of v2", specs.LinuxResources{Unified: map[string]string{"memory.high": "max", "cgroup.max.depth": "3"}}},
		{"a CPU set of v2", specs.LinuxResources{Unified: map[string]string{"cpuset.cpus": "0-1,3", "cpuset.mems": ""}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := resources.Check(&tc.r, host(t, true)); err != nil {
				t.Errorf("Check = %v, want none", err)
			}
		})
	}
	if err := resources.Check(nil, resources.Host{}); err != nil {
		t.Errorf("Check(nil) = %v, want none", err)
	}
	anything := ofCPU(specs.LinuxCPU{Cpus: "77", Mems: "77"})
	if err := resources.Check(&anything, resources.Host{}); err != nil {
		t.Errorf("Check on a machine that tells nothing = %v, want none", err)
	}
}

func TestReadHost(t *testing.T) {
	h := resources.ReadHost(&specs.LinuxResources{
		CPU: &specs.LinuxCPU{Cpus: "0", Mems: "0"}, HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}},
	})
	zero, err := cpuset.Parse("0")
	testx.Must(t, err)
	if !zero.Subset(h.CPUs) {
		t.Errorf("ReadHost().CPUs = %s, want 0 among them", h.CPUs)
	}
	for _, size := range h.PageSizes {
		if strings.TrimRight(size, "KMGB") == "" || !strings.HasSuffix(size, "B") {
			t.Errorf("ReadHost().PageSizes has %q, want a number and a unit", size)
		}
	}
}

// A request alone makes ReadHost ask for what the request is checked by: what no machine has is refused, if the kernel
// tells.
func TestReadHost_ReadsWhatARequestNeeds(t *testing.T) {
	for _, tc := range []struct {
		field, sysfs string
		r            specs.LinuxResources
	}{
		{"cpu.cpus", "/sys/devices/system/cpu/possible", ofCPU(specs.LinuxCPU{Cpus: "0,8191"})},
		{"cpu.mems", "/sys/devices/system/node/possible", ofCPU(specs.LinuxCPU{Mems: "0,8191"})},
		{"hugepageLimits", "/sys/kernel/mm/hugepages", specs.LinuxResources{HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "3MB"}}}},
	} {
		t.Run(tc.field, func(t *testing.T) {
			_, err := os.Stat(tc.sysfs)
			told := err == nil
			err = resources.Check(&tc.r, resources.ReadHost(&tc.r))
			if refused := err != nil && strings.Contains(err.Error(), tc.field); refused != told {
				t.Errorf("Check = %v; %s is there: %t", err, tc.sysfs, told)
			}
		})
	}
	if h := resources.ReadHost(nil); !reflect.DeepEqual(h, resources.Host{Unified: h.Unified}) {
		t.Errorf("ReadHost(nil) = %+v, want nothing asked but the version of cgroups", h)
	}
}

func FuzzCheckCPUs(f *testing.F) {
	for _, seed := range []string{"", "0", "0-3,7", "0-31:1/4", "3-1", ",", "0-", "99999999999999999999", "0 1\t2", "all"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		h := host(t, true)
		r := ofCPU(specs.LinuxCPU{Cpus: list})
		err := resources.Check(&r, h)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Check(%q) = %v, want an invalid argument", list, err)
			}
			return
		}
		set, err := cpuset.Parse(list)
		if err != nil || !set.Subset(h.CPUs) {
			t.Errorf("Check accepts %q, which is %s, %v, of %s", list, set, err, h.CPUs)
		}
	})
}
