// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Field is one of linux.resources, and the control files that depend on it.
type Field struct {
	Name string // as config.json has it, below linux.resources
	// V1 and V2 are the names of the files, or patterns of path.Match for them. The part before the first dot is the
	// controller. The kernel may change all of them when the field is written, not only the first. None means that this
	// layout has no such setting: the field is ignored there, as runc does. Device rules are no file on v2, and on v1
	// the file that is read is not the one that is written, so they have none either.
	V1, V2 []string
	// Set reports whether r asks for it. What is 0 where that means unset is not asked for.
	set func(r *specs.LinuxResources) bool
}

// Files are V1 or V2.
func (f Field) Files(unified bool) []string {
	if unified {
		return f.V2
	}
	return f.V1
}

// Fields are those that r sets, in the order of the specification.
func Fields(r *specs.LinuxResources) []Field {
	var set []Field
	for _, f := range fields {
		if f.set(r) {
			set = append(set, f)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Unified)) {
		set = append(set, Field{Name: fmt.Sprintf("unified[%q]", key), V2: []string{key}})
	}
	return set
}

// fields has all but unified, each key of which names its file. Sources: kernel, admin-guide/cgroup-v1/*.rst and
// admin-guide/cgroup-v2.rst.
var fields = []Field{
	{"devices", nil, nil, func(r *specs.LinuxResources) bool { return len(r.Devices) > 0 }},
	// v1 has a limit on memory and one on memory and swap, which must not be less; v2 has one on each.
	{"memory.limit", []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}, []string{"memory.max", "memory.swap.max"}, memory(func(m *specs.LinuxMemory) bool { return some(m.Limit) })},
	{"memory.reservation", []string{"memory.soft_limit_in_bytes"}, []string{"memory.low"}, memory(func(m *specs.LinuxMemory) bool { return some(m.Reservation) })},
	{"memory.swap", []string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes"}, []string{"memory.swap.max", "memory.max"}, memory(func(m *specs.LinuxMemory) bool { return some(m.Swap) })},
	{"memory.kernelTCP", []string{"memory.kmem.tcp.limit_in_bytes"}, nil, memory(func(m *specs.LinuxMemory) bool { return some(m.KernelTCP) })},
	{"memory.swappiness", []string{"memory.swappiness"}, nil, memory(func(m *specs.LinuxMemory) bool { return m.Swappiness != nil })},
	{"memory.disableOOMKiller", []string{"memory.oom_control"}, nil, memory(func(m *specs.LinuxMemory) bool { return m.DisableOOMKiller != nil })},
	{"cpu.shares", []string{"cpu.shares"}, []string{"cpu.weight"}, cpu(func(c *specs.LinuxCPU) bool { return some(c.Shares) })},
	{"cpu.quota", []string{"cpu.cfs_quota_us"}, []string{"cpu.max"}, cpu(func(c *specs.LinuxCPU) bool { return some(c.Quota) })},
	{"cpu.burst", []string{"cpu.cfs_burst_us"}, []string{"cpu.max.burst"}, cpu(func(c *specs.LinuxCPU) bool { return c.Burst != nil })},
	{"cpu.period", []string{"cpu.cfs_period_us"}, []string{"cpu.max"}, cpu(func(c *specs.LinuxCPU) bool { return some(c.Period) })},
	{"cpu.realtimeRuntime", []string{"cpu.rt_runtime_us"}, nil, cpu(func(c *specs.LinuxCPU) bool { return some(c.RealtimeRuntime) })},
	{"cpu.realtimePeriod", []string{"cpu.rt_period_us"}, nil, cpu(func(c *specs.LinuxCPU) bool { return some(c.RealtimePeriod) })},
	{"cpu.cpus", []string{"cpuset.cpus"}, []string{"cpuset.cpus"}, cpu(func(c *specs.LinuxCPU) bool { return c.Cpus != "" })},
	{"cpu.mems", []string{"cpuset.mems"}, []string{"cpuset.mems"}, cpu(func(c *specs.LinuxCPU) bool { return c.Mems != "" })},
	// A cgroup that becomes idle, or is so no more, gets a weight with it.
	{"cpu.idle", []string{"cpu.idle", "cpu.shares"}, []string{"cpu.idle", "cpu.weight"}, cpu(func(c *specs.LinuxCPU) bool { return c.Idle != nil })},
	{"pids.limit", []string{"pids.max"}, []string{"pids.max"}, func(r *specs.LinuxResources) bool { return r.Pids != nil && r.Pids.Limit != nil }},
	{"blockIO.weight", []string{"blkio.weight", "blkio.bfq.weight"}, []string{"io.weight", "io.bfq.weight"}, blockIO(func(b *specs.LinuxBlockIO) bool { return some(b.Weight) })},
	{"blockIO.leafWeight", []string{"blkio.leaf_weight"}, nil, blockIO(func(b *specs.LinuxBlockIO) bool { return some(b.LeafWeight) })},
	{"blockIO.weightDevice", []string{"blkio.weight_device", "blkio.bfq.weight_device", "blkio.leaf_weight_device"}, []string{"io.weight", "io.bfq.weight"}, blockIO(func(b *specs.LinuxBlockIO) bool { return len(b.WeightDevice) > 0 })},
	{"blockIO.throttleReadBpsDevice", []string{"blkio.throttle.read_bps_device"}, []string{"io.max"}, blockIO(func(b *specs.LinuxBlockIO) bool { return len(b.ThrottleReadBpsDevice) > 0 })},
	{"blockIO.throttleWriteBpsDevice", []string{"blkio.throttle.write_bps_device"}, []string{"io.max"}, blockIO(func(b *specs.LinuxBlockIO) bool { return len(b.ThrottleWriteBpsDevice) > 0 })},
	{"blockIO.throttleReadIOPSDevice", []string{"blkio.throttle.read_iops_device"}, []string{"io.max"}, blockIO(func(b *specs.LinuxBlockIO) bool { return len(b.ThrottleReadIOPSDevice) > 0 })},
	{"blockIO.throttleWriteIOPSDevice", []string{"blkio.throttle.write_iops_device"}, []string{"io.max"}, blockIO(func(b *specs.LinuxBlockIO) bool { return len(b.ThrottleWriteIOPSDevice) > 0 })},
	{"hugepageLimits", []string{"hugetlb.*.limit_in_bytes"}, []string{"hugetlb.*.max"}, func(r *specs.LinuxResources) bool { return len(r.HugepageLimits) > 0 }},
	{"network.classID", []string{"net_cls.classid"}, nil, func(r *specs.LinuxResources) bool { return r.Network != nil && some(r.Network.ClassID) }},
	{"network.priorities", []string{"net_prio.ifpriomap"}, nil, func(r *specs.LinuxResources) bool { return r.Network != nil && len(r.Network.Priorities) > 0 }},
	{"rdma", []string{"rdma.max"}, []string{"rdma.max"}, func(r *specs.LinuxResources) bool { return len(r.Rdma) > 0 }},
}

// some reports whether there is a value other than 0.
func some[T comparable](p *T) bool {
	var zero T
	return p != nil && *p != zero
}

func memory(set func(*specs.LinuxMemory) bool) func(*specs.LinuxResources) bool {
	return func(r *specs.LinuxResources) bool { return r.Memory != nil && set(r.Memory) }
}

func cpu(set func(*specs.LinuxCPU) bool) func(*specs.LinuxResources) bool {
	return func(r *specs.LinuxResources) bool { return r.CPU != nil && set(r.CPU) }
}

func blockIO(set func(*specs.LinuxBlockIO) bool) func(*specs.LinuxResources) bool {
	return func(r *specs.LinuxResources) bool { return r.BlockIO != nil && set(r.BlockIO) }
}
