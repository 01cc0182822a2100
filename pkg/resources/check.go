// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"fmt"
	"math"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
)

// Check refuses values that are not allowed on h. r is all that is asked of a container; nil asks for nothing.
func Check(r *specs.LinuxResources, h Host) error {
	if r == nil {
		return nil
	}
	for _, check := range []func(*specs.LinuxResources, Host) error{
		checkMemory, checkCPU, checkRealtime, checkCpuset, checkBlockIO, checkHugePages, checkRdma, checkNetwork, checkDevices, checkUnified,
	} {
		if err := check(r, h); err != nil {
			return fmt.Errorf("linux.resources.%w", err)
		}
	}
	return nil
}

// refuse says that the value of field is not allowed, and what is.
func refuse(field string, value any, allowed string) error {
	if text, ok := value.(string); ok {
		value = fmt.Sprintf("%q", text)
	}
	return fmt.Errorf("%s %v: %s: %w", field, value, allowed, errdefs.ErrInvalidArgument)
}

// value is what p points to, or 0, which means the same as nothing.
func value[T any](p *T) T {
	var v T
	if p != nil {
		v = *p
	}
	return v
}

func checkMemory(r *specs.LinuxResources, _ Host) error {
	m := r.Memory
	if m == nil {
		return nil
	}
	for _, f := range []struct {
		name  string
		value *int64
	}{
		{"limit", m.Limit},
		{"reservation", m.Reservation},
		{"swap", m.Swap},
		{"kernelTCP", m.KernelTCP},
	} {
		if v := value(f.value); v < -1 {
			return refuse("memory."+f.name, v, "must be at least 0, or -1 for no limit")
		}
	}
	switch limit, swap := value(m.Limit), value(m.Swap); {
	case swap <= 0:
	case limit == 0:
		return refuse("memory.swap", swap, "limits memory and swap together, so memory.limit must be set too")
	case swap < limit:
		return refuse("memory.swap", swap, fmt.Sprintf("limits memory and swap together, must be at least memory.limit %d, or -1 for no limit", limit))
	}
	const most = 100             // kernel, cgroup-v1/memory.rst
	const unset = math.MaxUint64 // -1 of clients that have it signed
	if v := value(m.Swappiness); v > most && v != unset {
		return refuse("memory.swappiness", v, "must be from 0 to 100")
	}
	return nil
}

// The kernel's limits of CPU time: MIN_SHARES and MAX_SHARES in kernel/sched/sched.h; scheduler/sched-bwc.rst, in µs.
const (
	minShares = 2
	maxShares = 262144
	minQuota  = 1000
	minPeriod = 1000
	maxPeriod = 1000000
)

func checkCPU(r *specs.LinuxResources, _ Host) error {
	c := r.CPU
	if c == nil {
		return nil
	}
	if v := value(c.Shares); v != 0 && (v < minShares || v > maxShares) {
		return refuse("cpu.shares", v, fmt.Sprintf("must be 0 (unset) or from %d to %d", minShares, maxShares))
	}
	quota := value(c.Quota)
	if quota > 0 && quota < minQuota {
		return refuse("cpu.quota", quota, fmt.Sprintf("must be at least %d µs, 0 (unset), or -1 for no limit", minQuota))
	}
	if v := value(c.Period); v != 0 && (v < minPeriod || v > maxPeriod) {
		return refuse("cpu.period", v, fmt.Sprintf("must be 0 (unset) or from %d to %d µs", minPeriod, maxPeriod))
	}
	if v := value(c.Burst); quota > 0 && v > uint64(quota) {
		return refuse("cpu.burst", v, fmt.Sprintf("must be at most cpu.quota %d", quota))
	}
	if v := value(c.Idle); v != 0 && v != 1 {
		return refuse("cpu.idle", v, "must be 0 or 1")
	}
	return nil
}

// checkRealtime follows scheduler/sched-rt-group.rst: the time is part of the period.
func checkRealtime(r *specs.LinuxResources, _ Host) error {
	if r.CPU == nil {
		return nil
	}
	runtime, period := value(r.CPU.RealtimeRuntime), value(r.CPU.RealtimePeriod)
	if period != 0 && runtime > 0 && uint64(runtime) > period {
		return refuse("cpu.realtimeRuntime", runtime, fmt.Sprintf("must be at most cpu.realtimePeriod %d", period))
	}
	return nil
}

func checkCpuset(r *specs.LinuxResources, h Host) error {
	if r.CPU == nil {
		return nil
	}
	for _, f := range []struct {
		name, list string
		all        cpuset.Set
	}{
		{"cpu.cpus", r.CPU.Cpus, h.CPUs},
		{"cpu.mems", r.CPU.Mems, h.Nodes},
	} {
		set, err := cpuset.Parse(f.list)
		if err != nil {
			return refuse(f.name, f.list, fmt.Sprintf("must be numbers and ranges of them from 0 to %d, such as 0-3,7", cpuset.Limit-1))
		}
		if missing := set.Difference(f.all); !f.all.Empty() && !missing.Empty() {
			return refuse(f.name, f.list, fmt.Sprintf("%s does not exist here, must be among %s", missing, f.all))
		}
	}
	return nil
}
