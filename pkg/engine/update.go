// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Update implements process.Runtime. Only the groups of settings that r names
// are written, so that what others wrote to the cgroup meanwhile stays. Device
// rules are never written.
func (c *container) Update(r *specs.LinuxResources) error {
	config, err := c.manager.GetCgroups()
	if err != nil {
		return err
	}
	if c.resources == nil {
		c.resources = config.Resources
	}
	next := *c.resources
	touched := cgroups.Resources{SkipDevices: true}
	merge(&next, &touched, r)
	if err := c.manager.Set(&touched); err != nil {
		if undo := c.manager.Set(former(c.resources, &touched)); undo != nil {
			err = errors.Join(err, fmt.Errorf("put the former values back: %w", undo))
		}
		return err
	}
	c.resources = &next
	return nil
}

// merge puts the values of r into next, which is all that is asked of the
// container, and into touched, which is what has to be written. Settings that
// the kernel judges together are written together.
func merge(next, touched *cgroups.Resources, r *specs.LinuxResources) {
	if m := r.Memory; m != nil {
		set(&next.Memory, m.Limit)
		set(&next.MemoryReservation, m.Reservation)
		set(&next.MemorySwap, m.Swap)
		set(&next.MemoryCheckBeforeUpdate, m.CheckBeforeUpdate)
		if m.Limit != nil && *m.Limit == -1 && m.Swap == nil {
			// Without a memory limit there cannot be one on memory and swap
			// together (kernel, cgroup-v1/memory.rst), so both go.
			next.MemorySwap = -1
		}
		touched.Memory, touched.MemoryReservation = next.Memory, next.MemoryReservation
		touched.MemorySwap, touched.MemoryCheckBeforeUpdate = next.MemorySwap, next.MemoryCheckBeforeUpdate
	}
	if cpu := r.CPU; cpu != nil {
		mergeCPU(next, touched, cpu)
	}
	if p := r.Pids; p != nil && p.Limit != nil {
		next.PidsLimit = p.Limit
		touched.PidsLimit = p.Limit
	}
	if b := r.BlockIO; b != nil {
		set(&next.BlkioWeight, b.Weight)
		set(&next.BlkioLeafWeight, b.LeafWeight)
		touched.BlkioWeight, touched.BlkioLeafWeight = next.BlkioWeight, next.BlkioLeafWeight
	}
	for _, l := range r.HugepageLimits {
		limit := &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit}
		touched.HugetlbLimit = append(touched.HugetlbLimit, limit)
	}
	if len(r.Unified) > 0 {
		next.Unified = maps.Clone(next.Unified)
		if next.Unified == nil {
			next.Unified = map[string]string{}
		}
		maps.Copy(next.Unified, r.Unified)
		touched.Unified = r.Unified
	}
}

func mergeCPU(next, touched *cgroups.Resources, cpu *specs.LinuxCPU) {
	if cpu.Shares != nil {
		next.CpuShares = *cpu.Shares
		next.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*cpu.Shares)
		touched.CpuShares, touched.CpuWeight = next.CpuShares, next.CpuWeight
	}
	if cpu.Quota != nil || cpu.Period != nil || cpu.Burst != nil {
		set(&next.CpuQuota, cpu.Quota)
		set(&next.CpuPeriod, cpu.Period)
		if cpu.Burst != nil {
			next.CpuBurst = cpu.Burst
		}
		touched.CpuQuota, touched.CpuPeriod, touched.CpuBurst = next.CpuQuota, next.CpuPeriod, next.CpuBurst
	}
	if cpu.RealtimePeriod != nil || cpu.RealtimeRuntime != nil {
		set(&next.CpuRtPeriod, cpu.RealtimePeriod)
		set(&next.CpuRtRuntime, cpu.RealtimeRuntime)
		touched.CpuRtPeriod, touched.CpuRtRuntime = next.CpuRtPeriod, next.CpuRtRuntime
	}
	if cpu.Idle != nil {
		next.CPUIdle = cpu.Idle
		touched.CPUIdle = cpu.Idle
	}
	if cpu.Cpus != "" {
		next.CpusetCpus = cpu.Cpus
		touched.CpusetCpus = cpu.Cpus
	}
	if cpu.Mems != "" {
		next.CpusetMems = cpu.Mems
		touched.CpusetMems = cpu.Mems
	}
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// former is what undoes touched. Where nothing was asked for before, it is the
// kernel's own default, if that is the same everywhere: a cpuset, a block IO
// weight and a key of unified have none to go back to.
func former(before, touched *cgroups.Resources) *cgroups.Resources {
	r := cgroups.Resources{SkipDevices: true}
	if touched.Memory != 0 || touched.MemorySwap != 0 || touched.MemoryReservation != 0 {
		r.Memory, r.MemorySwap, r.MemoryReservation = or(before.Memory, -1), or(before.MemorySwap, -1), or(before.MemoryReservation, -1)
	}
	if touched.CpuShares != 0 {
		r.CpuShares = or(before.CpuShares, defaultShares)
		r.CpuWeight = or(before.CpuWeight, cgroups.ConvertCPUSharesToCgroupV2Value(defaultShares))
	}
	if touched.CpuQuota != 0 || touched.CpuPeriod != 0 || touched.CpuBurst != nil {
		r.CpuQuota, r.CpuPeriod = or(before.CpuQuota, -1), or(before.CpuPeriod, defaultPeriod)
		if r.CpuBurst = before.CpuBurst; touched.CpuBurst != nil {
			r.CpuBurst = or(before.CpuBurst, new(uint64(0)))
		}
	}
	if touched.CpuRtPeriod != 0 || touched.CpuRtRuntime != 0 {
		r.CpuRtPeriod, r.CpuRtRuntime = before.CpuRtPeriod, before.CpuRtRuntime
	}
	if touched.CPUIdle != nil {
		r.CPUIdle = or(before.CPUIdle, new(int64(0)))
	}
	if touched.CpusetCpus != "" {
		r.CpusetCpus = before.CpusetCpus
	}
	if touched.CpusetMems != "" {
		r.CpusetMems = before.CpusetMems
	}
	if touched.PidsLimit != nil {
		r.PidsLimit = or(before.PidsLimit, new(int64(-1)))
	}
	if touched.BlkioWeight != 0 || touched.BlkioLeafWeight != 0 {
		r.BlkioWeight, r.BlkioLeafWeight = before.BlkioWeight, before.BlkioLeafWeight
	}
	for key := range touched.Unified {
		if value, ok := before.Unified[key]; ok {
			if r.Unified == nil {
				r.Unified = map[string]string{}
			}
			r.Unified[key] = value
		}
	}
	return &r
}

const (
	defaultShares = 1024   // kernel, cgroup-v1: cpu.shares
	defaultPeriod = 100000 // µs; kernel, scheduler/sched-bwc.rst
)

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
