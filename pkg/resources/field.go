// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Field is a field of linux.resources with the control files that depend on it.
type Field struct {
	Name string // as in config.json, below linux.resources
	// V1 and V2 are names of files, or patterns of path.Match for them. The part before the first dot is the
	// controller. Writing the field may change all of them, not only the first. A field without files has no setting in
	// that version and is ignored there, as in runc. Device rules have none either: on v2 they are not a file, on v1
	// the file that is read is not the one that is written.
	V1, V2 []string
	// zeroIsValue is for fields of which 0 is a value. For the others it means unset.
	zeroIsValue bool
}

// Files returns V2 if unified is set, else V1.
func (f Field) Files(unified bool) []string {
	if unified {
		return f.V2
	}
	return f.V1
}

// Fields returns those that r sets, in the order of the specification.
func Fields(r *specs.LinuxResources) []Field {
	var set []Field
	for _, f := range fields {
		if f.isSet(r) {
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
	{Name: "devices"},
	// v1 has a limit on memory and one on memory and swap together, which must not be less; v2 has one on each.
	{
		"memory.limit",
		[]string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
		[]string{"memory.max", "memory.swap.max"},
		false,
	},
	{"memory.reservation", []string{"memory.soft_limit_in_bytes"}, []string{"memory.low"}, false},
	{
		"memory.swap",
		[]string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes"},
		[]string{"memory.swap.max", "memory.max"},
		false,
	},
	{"memory.kernelTCP", []string{"memory.kmem.tcp.limit_in_bytes"}, nil, false},
	{"memory.swappiness", []string{"memory.swappiness"}, nil, true},
	{"memory.disableOOMKiller", []string{"memory.oom_control"}, nil, true},
	{"cpu.shares", []string{"cpu.shares"}, []string{"cpu.weight"}, false},
	{"cpu.quota", []string{"cpu.cfs_quota_us"}, []string{"cpu.max"}, false},
	{"cpu.burst", []string{"cpu.cfs_burst_us"}, []string{"cpu.max.burst"}, true},
	{"cpu.period", []string{"cpu.cfs_period_us"}, []string{"cpu.max"}, false},
	{"cpu.realtimeRuntime", []string{"cpu.rt_runtime_us"}, nil, false},
	{"cpu.realtimePeriod", []string{"cpu.rt_period_us"}, nil, false},
	{"cpu.cpus", []string{"cpuset.cpus"}, []string{"cpuset.cpus"}, false},
	{"cpu.mems", []string{"cpuset.mems"}, []string{"cpuset.mems"}, false},
	// A cgroup that becomes idle, or stops being so, gets a weight with it.
	{"cpu.idle", []string{"cpu.idle", "cpu.shares"}, []string{"cpu.idle", "cpu.weight"}, true},
	{"pids.limit", []string{"pids.max"}, []string{"pids.max"}, true},
	{"blockIO.weight", []string{"blkio.weight", "blkio.bfq.weight"}, []string{"io.weight", "io.bfq.weight"}, false},
	{"blockIO.leafWeight", []string{"blkio.leaf_weight"}, nil, false},
	{
		"blockIO.weightDevice",
		[]string{"blkio.weight_device", "blkio.bfq.weight_device", "blkio.leaf_weight_device"},
		[]string{"io.weight", "io.bfq.weight"},
		false,
	},
	{"blockIO.throttleReadBpsDevice", []string{"blkio.throttle.read_bps_device"}, []string{"io.max"}, false},
	{"blockIO.throttleWriteBpsDevice", []string{"blkio.throttle.write_bps_device"}, []string{"io.max"}, false},
	{"blockIO.throttleReadIOPSDevice", []string{"blkio.throttle.read_iops_device"}, []string{"io.max"}, false},
	{"blockIO.throttleWriteIOPSDevice", []string{"blkio.throttle.write_iops_device"}, []string{"io.max"}, false},
	{"hugepageLimits", []string{"hugetlb.*.limit_in_bytes"}, []string{"hugetlb.*.max"}, false},
	{"network.classID", []string{"net_cls.classid"}, nil, false},
	{"network.priorities", []string{"net_prio.ifpriomap"}, nil, false},
	{"rdma", []string{"rdma.max"}, []string{"rdma.max"}, false},
}

func (f Field) isSet(r *specs.LinuxResources) bool {
	v := f.in(r)
	switch {
	case !v.IsValid() || v.IsZero():
		return false
	case v.Kind() == reflect.Pointer:
		return f.zeroIsValue || !v.Elem().IsZero()
	case v.Kind() == reflect.String:
		return true
	}
	return v.Len() > 0 // a list or a map
}

// in finds the field by its name in JSON. The result is invalid if a part of r that it belongs to is nil.
func (f Field) in(r *specs.LinuxResources) reflect.Value {
	v := reflect.ValueOf(r)
	for part := range strings.SplitSeq(f.Name, ".") {
		if v = v.Elem(); !v.IsValid() {
			return v
		}
		v = v.FieldByNameFunc(func(name string) bool {
			member, _ := v.Type().FieldByName(name)
			tag, _, _ := strings.Cut(member.Tag.Get("json"), ",")
			return tag == part
		})
	}
	return v
}

// Merge applies update r to before, which may be nil. next is the result. write is the subset of next to write; values
// that others wrote to the container's cgroup stay:
//   - the fields that r sets, and the fields that the kernel or libcontainer validates together with them;
//   - device rules, CPUs and memory nodes only if they differ from before: CRI repeats them in each update, while the
//     kubelet and others move a container between CPUs.
//
// Neither argument is changed.
func Merge(before, r *specs.LinuxResources) (next, write *specs.LinuxResources) {
	if before == nil {
		before = &specs.LinuxResources{}
	}
	n, w := *before, *r
	n.Memory, w.Memory = copyFor(r.Memory, before.Memory), copyFor(r.Memory, r.Memory)
	n.CPU, w.CPU = copyFor(r.CPU, before.CPU), copyFor(r.CPU, r.CPU)
	n.Pids = copyFor(r.Pids, before.Pids)
	n.BlockIO = copyFor(r.BlockIO, before.BlockIO)
	n.Network = copyFor(r.Network, before.Network)
	for _, f := range fields {
		if f.isSet(r) {
			f.in(&n).Set(f.in(r))
		}
	}
	n.Rdma, n.Unified = mergeMap(before.Rdma, r.Rdma), mergeMap(before.Unified, r.Unified)
	if r.Memory != nil {
		joinMemory(value(before.Memory), n.Memory, w.Memory)
	}
	if r.CPU != nil {
		joinCPU(value(before.CPU), n.CPU, w.CPU)
	}
	if reflect.DeepEqual(r.Devices, before.Devices) {
		w.Devices = nil
	}
	return &n, &w
}

// joinMemory adds to write what is checked together with it, and to next what follows from it.
func joinMemory(before specs.LinuxMemory, next, write *specs.LinuxMemory) {
	setsLimit, setsSwap := value(write.Limit) != 0, value(write.Swap) != 0
	if setsLimit && !setsSwap {
		next.Swap = swapWith(before, *write.Limit)
	}
	if setsLimit || setsSwap {
		write.Limit, write.Swap = next.Limit, next.Swap
	}
	if write.CheckBeforeUpdate != nil {
		next.CheckBeforeUpdate = write.CheckBeforeUpdate
	}
	write.CheckBeforeUpdate = next.CheckBeforeUpdate
}

// swapWith returns the limit on memory and swap together that goes with a new limit on memory alone. The former limit
// stays if it can. Without a limit on memory there must be none on both (kernel, cgroup-v1/memory.rst). If memory alone
// may have more than both had together, the limit grows by the swap that was allowed.
func swapWith(before specs.LinuxMemory, limit int64) *int64 {
	total := value(before.Swap)
	switch {
	case limit == -1:
		return &limit
	case total > 0 && limit > total:
		total = limit + max(0, total-value(before.Limit))
		return &total
	}
	return before.Swap
}

// joinCPU adds to write what is checked together with it, and removes what others may have changed since.
func joinCPU(before specs.LinuxCPU, next, write *specs.LinuxCPU) {
	if value(write.Quota) != 0 || value(write.Period) != 0 || write.Burst != nil {
		write.Quota, write.Period = next.Quota, next.Period
	}
	if value(write.RealtimeRuntime) != 0 || value(write.RealtimePeriod) != 0 {
		write.RealtimeRuntime, write.RealtimePeriod = next.RealtimeRuntime, next.RealtimePeriod
	}
	if write.Cpus == before.Cpus {
		write.Cpus = ""
	}
	if write.Mems == before.Mems {
		write.Mems = ""
	}
}

func mergeMap[V any](before, r map[string]V) map[string]V {
	if len(r) == 0 {
		return before
	}
	next := make(map[string]V, len(before)+len(r))
	maps.Copy(next, before)
	maps.Copy(next, r)
	return next
}

// copyFor returns p or, if there is a change, a copy of it or a zero value that the change can be applied to.
func copyFor[T any](change, p *T) *T {
	if change == nil {
		return p
	}
	v := value(p)
	return &v
}
