// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"maps"
	"reflect"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Merge adds what r sets to what was asked before, which may be nil. next is all that is asked then; write is what of it
// has to be written, so that what others wrote to the container's cgroup meanwhile stays:
//   - what r sets, and with it what the kernel or libcontainer judges together with that;
//   - device rules, CPUs and memory nodes only where they differ from those asked before: CRI repeats them in each update
//     of anything, while the kubelet and others move a container between CPUs.
//
// Neither argument is changed.
func Merge(before, r *specs.LinuxResources) (next, write *specs.LinuxResources) {
	if before == nil {
		before = &specs.LinuxResources{}
	}
	n, w := *before, *r
	n.Memory, w.Memory = mergeMemory(before.Memory, r.Memory)
	n.CPU, w.CPU = mergeCPU(before.CPU, r.CPU)
	n.BlockIO = mergeBlockIO(before.BlockIO, r.BlockIO)
	n.Network = mergeNetwork(before.Network, r.Network)
	if r.Pids != nil && r.Pids.Limit != nil {
		n.Pids = r.Pids
	}
	if len(r.Devices) > 0 {
		n.Devices = r.Devices
	}
	if reflect.DeepEqual(r.Devices, before.Devices) {
		w.Devices = nil
	}
	if len(r.HugepageLimits) > 0 {
		n.HugepageLimits = r.HugepageLimits
	}
	n.Rdma = mergeMap(before.Rdma, r.Rdma)
	n.Unified = mergeMap(before.Unified, r.Unified)
	return &n, &w
}

func mergeMemory(before, r *specs.LinuxMemory) (next, write *specs.LinuxMemory) {
	if r == nil {
		return before, nil
	}
	n, w := value(before), *r
	replace(&n.Limit, r.Limit)
	replace(&n.Reservation, r.Reservation)
	replace(&n.Swap, r.Swap)
	replace(&n.KernelTCP, r.KernelTCP)
	replaceAny(&n.Swappiness, r.Swappiness)
	replaceAny(&n.DisableOOMKiller, r.DisableOOMKiller)
	replaceAny(&n.CheckBeforeUpdate, r.CheckBeforeUpdate)
	if some(r.Limit) && !some(r.Swap) {
		n.Swap = swapWith(before, *r.Limit)
	}
	if some(r.Limit) || some(r.Swap) {
		w.Limit, w.Swap = n.Limit, n.Swap
	}
	w.CheckBeforeUpdate = n.CheckBeforeUpdate
	return &n, &w
}

// swapWith is the limit on memory and swap together that goes with a new limit on memory alone. The former stays if it
// can: it must be none where memory has none (kernel, cgroup-v1/memory.rst). Where memory alone may have more than both had
// together, it grows by what swap there was.
func swapWith(before *specs.LinuxMemory, limit int64) *int64 {
	former := value(before)
	total := value(former.Swap)
	switch {
	case limit == -1:
		return &limit
	case total > 0 && limit > total:
		total = limit + max(0, total-value(former.Limit))
		return &total
	}
	return former.Swap
}

func mergeCPU(before, r *specs.LinuxCPU) (next, write *specs.LinuxCPU) {
	if r == nil {
		return before, nil
	}
	n, w := value(before), *r
	replace(&n.Shares, r.Shares)
	replace(&n.Quota, r.Quota)
	replace(&n.Period, r.Period)
	replaceAny(&n.Burst, r.Burst)
	replace(&n.RealtimeRuntime, r.RealtimeRuntime)
	replace(&n.RealtimePeriod, r.RealtimePeriod)
	replaceAny(&n.Idle, r.Idle)
	if some(r.Quota) || some(r.Period) || r.Burst != nil {
		w.Quota, w.Period = n.Quota, n.Period
	}
	if some(r.RealtimeRuntime) || some(r.RealtimePeriod) {
		w.RealtimeRuntime, w.RealtimePeriod = n.RealtimeRuntime, n.RealtimePeriod
	}
	mergeList(&n.Cpus, &w.Cpus)
	mergeList(&n.Mems, &w.Mems)
	return &n, &w
}

// mergeList moves a list that is to be written to next, unless that has it already.
func mergeList(next, write *string) {
	switch *write {
	case "":
	case *next:
		*write = ""
	default:
		*next = *write
	}
}

func mergeBlockIO(before, r *specs.LinuxBlockIO) *specs.LinuxBlockIO {
	if r == nil {
		return before
	}
	n := value(before)
	replace(&n.Weight, r.Weight)
	replace(&n.LeafWeight, r.LeafWeight)
	if len(r.WeightDevice) > 0 {
		n.WeightDevice = r.WeightDevice
	}
	for _, l := range []struct{ next, r *[]specs.LinuxThrottleDevice }{
		{&n.ThrottleReadBpsDevice, &r.ThrottleReadBpsDevice},
		{&n.ThrottleWriteBpsDevice, &r.ThrottleWriteBpsDevice},
		{&n.ThrottleReadIOPSDevice, &r.ThrottleReadIOPSDevice},
		{&n.ThrottleWriteIOPSDevice, &r.ThrottleWriteIOPSDevice},
	} {
		if len(*l.r) > 0 {
			*l.next = *l.r
		}
	}
	return &n
}

func mergeNetwork(before, r *specs.LinuxNetwork) *specs.LinuxNetwork {
	if r == nil {
		return before
	}
	n := value(before)
	replace(&n.ClassID, r.ClassID)
	if len(r.Priorities) > 0 {
		n.Priorities = r.Priorities
	}
	return &n
}

func mergeMap[V any](before, r map[string]V) map[string]V {
	if len(r) == 0 {
		return before
	}
	next := maps.Clone(before)
	if next == nil {
		next = make(map[string]V, len(r))
	}
	maps.Copy(next, r)
	return next
}

// replace is for fields of which 0 means unset.
func replace[T comparable](to **T, from *T) {
	if some(from) {
		*to = from
	}
}

// replaceAny is for fields of which 0 is a value.
func replaceAny[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}
