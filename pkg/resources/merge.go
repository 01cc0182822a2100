// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"maps"
	"reflect"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Merge adds what r sets to what was asked for before, which may be nil. next is all that is asked for then. write is
// what of it has to be written, so that what others wrote to the container's cgroup meanwhile stays:
//   - what r sets, and with it what the kernel or libcontainer checks together with that;
//   - device rules, CPUs and memory nodes only if they differ from before: CRI repeats them in each update of anything,
//     while the kubelet and others move a container between CPUs.
//
// Neither argument is changed.
func Merge(before, r *specs.LinuxResources) (next, write *specs.LinuxResources) {
	if before == nil {
		before = &specs.LinuxResources{}
	}
	n, w := *before, *r
	if r.Memory != nil {
		n.Memory, w.Memory = copyOf(before.Memory), copyOf(r.Memory)
	}
	if r.CPU != nil {
		n.CPU, w.CPU = copyOf(before.CPU), copyOf(r.CPU)
	}
	if r.Pids != nil {
		n.Pids = copyOf(before.Pids)
	}
	if r.BlockIO != nil {
		n.BlockIO = copyOf(before.BlockIO)
	}
	if r.Network != nil {
		n.Network = copyOf(before.Network)
	}
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

// swapWith is the limit on memory and swap together that goes with a new limit on memory alone. The former stays if it
// can. Without a limit on memory there must be none on both (kernel, cgroup-v1/memory.rst). If memory alone may have
// more than both had together, the limit grows by the swap that was allowed.
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

// copyOf points to a copy of what p points to, or to a zero value.
func copyOf[T any](p *T) *T {
	v := value(p)
	return &v
}
