// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"cmp"
	"maps"
	"reflect"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Merge applies update r to before, which may be nil, and changes neither. next is the result; write is the subset of
// next to write: the fields of r, and those that the kernel validates with them, since other values in the cgroup
// stay. Device rules, CPUs and memory nodes are written only if they differ from before: CRI repeats them in each
// update, while the kubelet moves containers between CPUs. Block IO and network are replaced as a whole.
func Merge(before, r *specs.LinuxResources) (next, write *specs.LinuxResources) {
	n, w := value(before), *r
	if reflect.DeepEqual(r.Devices, n.Devices) {
		w.Devices = nil
	}
	n.Devices = override(n.Devices, r.Devices)
	if r.Memory != nil {
		n.Memory, w.Memory = mergeMemory(value(n.Memory), *r.Memory)
	}
	if r.CPU != nil {
		n.CPU, w.CPU = mergeCPU(value(n.CPU), *r.CPU)
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		n.Pids = r.Pids
	}
	n.BlockIO, n.Network = cmp.Or(r.BlockIO, n.BlockIO), cmp.Or(r.Network, n.Network)
	n.HugepageLimits = override(n.HugepageLimits, r.HugepageLimits)
	n.Rdma, n.Unified = mergeMap(n.Rdma, r.Rdma), mergeMap(n.Unified, r.Unified)
	return &n, &w
}

// set sets a field for which 0 means unset.
func set[T comparable](field **T, v *T) {
	var unset T
	if v != nil && *v != unset {
		*field = v
	}
}

func override[T any](before, r []T) []T {
	if len(r) == 0 {
		return before
	}
	return r
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

func mergeMemory(before, r specs.LinuxMemory) (next, write *specs.LinuxMemory) {
	n, w := before, r
	set(&n.Limit, r.Limit)
	set(&n.Reservation, r.Reservation)
	set(&n.Swap, r.Swap)
	n.Swappiness = cmp.Or(r.Swappiness, before.Swappiness)
	n.DisableOOMKiller = cmp.Or(r.DisableOOMKiller, before.DisableOOMKiller)
	n.CheckBeforeUpdate = cmp.Or(r.CheckBeforeUpdate, before.CheckBeforeUpdate)
	w.CheckBeforeUpdate = n.CheckBeforeUpdate
	setsLimit, setsSwap := value(r.Limit) != 0, value(r.Swap) != 0
	if setsLimit && !setsSwap {
		n.Swap = swapWith(before, *r.Limit)
	}
	if setsLimit || setsSwap {
		w.Limit, w.Swap = n.Limit, n.Swap
	}
	return &n, &w
}

// swapWith returns the limit of memory and swap for a new limit of memory (kernel, cgroup-v1/memory.rst): none without
// one, the former one if it can stay, or else limit plus the swap that was allowed.
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

func mergeCPU(before, r specs.LinuxCPU) (next, write *specs.LinuxCPU) {
	n, w := before, r
	set(&n.Shares, r.Shares)
	set(&n.Quota, r.Quota)
	set(&n.Period, r.Period)
	set(&n.RealtimeRuntime, r.RealtimeRuntime)
	set(&n.RealtimePeriod, r.RealtimePeriod)
	n.Burst, n.Idle = cmp.Or(r.Burst, before.Burst), cmp.Or(r.Idle, before.Idle)
	n.Cpus, n.Mems = cmp.Or(r.Cpus, before.Cpus), cmp.Or(r.Mems, before.Mems)
	if value(r.Quota) != 0 || value(r.Period) != 0 || r.Burst != nil {
		w.Quota, w.Period = n.Quota, n.Period
	}
	if value(r.RealtimeRuntime) != 0 || value(r.RealtimePeriod) != 0 {
		w.RealtimeRuntime, w.RealtimePeriod = n.RealtimeRuntime, n.RealtimePeriod
	}
	if r.Cpus == before.Cpus {
		w.Cpus = ""
	}
	if r.Mems == before.Mems {
		w.Mems = ""
	}
	return &n, &w
}
