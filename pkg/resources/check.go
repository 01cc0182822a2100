// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package resources checks and merges linux.resources (OCI runtime specification, config-linux.md, Control groups). It
// allows the values of clients for "not set": none, 0, an empty string.
package resources

import (
	"cmp"
	"fmt"
	"math"
	"os"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
)

// Check refuses values that the kernel would refuse or silently change on h. r has all resources of a container.
// An error is errdefs.ErrInvalidArgument.
func Check(r *specs.LinuxResources, h Host) error {
	if r == nil {
		return nil
	}
	m, c, b := value(r.Memory), value(r.CPU), value(r.BlockIO)
	limit, reservation, swap, swappiness := value(m.Limit), value(m.Reservation), value(m.Swap), value(m.Swappiness)
	shares, quota, period, burst, idle := value(c.Shares), value(c.Quota), value(c.Period), value(c.Burst), value(c.Idle)
	runtime, runtimePeriod := value(c.RealtimeRuntime), value(c.RealtimePeriod)
	weight, leafWeight := value(b.Weight), value(b.LeafWeight)
	const atLeast = "must be at least 0, or -1 for no limit"
	const weights = "must be 0 (unset) or from 10 to 1000" // OCI runtime specification, config-linux.md, Block IO
	for _, f := range []struct {
		name    string
		value   any
		ok      bool
		allowed string
	}{
		{"memory.limit", limit, limit >= -1, atLeast},
		{"memory.reservation", reservation, reservation >= -1, atLeast},
		{"memory.swap", swap, swap >= -1, atLeast},
		{
			"memory.swap", swap, swap <= 0 || limit != 0 && swap >= limit,
			fmt.Sprintf("limits memory and swap together, must be at least memory.limit %d, which must be set", limit),
		},
		// The last one is -1 of clients with a signed field.
		{"memory.swappiness", swappiness, swappiness <= 100 || swappiness == math.MaxUint64, "must be from 0 to 100"},
		// MIN_SHARES and MAX_SHARES in kernel/sched/sched.h. For v2 libcontainer converts any number to a weight.
		{"cpu.shares", shares, h.Unified || isWithin(shares, 2, 262144), "must be 0 (unset) or from 2 to 262144"},
		// Kernel: scheduler/sched-bwc.rst and sched-rt-group.rst.
		{"cpu.quota", quota, quota <= 0 || quota >= 1000, "must be at least 1000 µs, 0 (unset), or -1 for no limit"},
		{"cpu.period", period, isWithin(period, 1000, 1000000), "must be 0 (unset) or from 1000 to 1000000 µs"},
		{"cpu.burst", burst, quota <= 0 || burst <= uint64(quota), fmt.Sprintf("must be at most cpu.quota %d", quota)},
		{"cpu.idle", idle, idle == 0 || idle == 1, "must be 0 or 1"},
		{
			"cpu.realtimeRuntime", runtime, runtime <= 0 || runtimePeriod == 0 || uint64(runtime) <= runtimePeriod,
			fmt.Sprintf("must be at most cpu.realtimePeriod %d", runtimePeriod),
		},
		{"blockIO.weight", weight, isWithin(weight, 10, 1000), weights},
		{"blockIO.leafWeight", leafWeight, isWithin(leafWeight, 10, 1000), weights},
	} {
		if !f.ok {
			return refuse(f.name, f.value, f.allowed)
		}
	}
	return cmp.Or(
		checkSet("cpu.cpus", c.Cpus, h.CPUs), checkSet("cpu.mems", c.Mems, h.Nodes), checkUnified(r.Unified, h),
	)
}

func refuse(field string, value any, allowed string) error {
	if text, ok := value.(string); ok {
		value = fmt.Sprintf("%q", text)
	}
	return fmt.Errorf("linux.resources.%s %v: %s: %w", field, value, allowed, errdefs.ErrInvalidArgument)
}

// isWithin reports whether v is 0, which is unset, or in a range.
func isWithin[N uint16 | uint64](v, least, most N) bool { return v == 0 || v >= least && v <= most }

func value[T any](p *T) T {
	var v T
	if p != nil {
		v = *p
	}
	return v
}

func checkSet(field, list string, all cpuset.Set) error {
	set, err := cpuset.Parse(list)
	if err != nil {
		allowed := fmt.Sprintf("must be numbers and ranges of them from 0 to %d, such as 0-3,7", cpuset.Limit-1)
		return refuse(field, list, allowed)
	}
	if !all.Empty() && set.Intersect(all) != set {
		return refuse(field, list, fmt.Sprintf("must be among %s, which exist here", all))
	}
	return nil
}

func checkUnified(files map[string]string, h Host) error {
	for key, text := range files {
		field := fmt.Sprintf("unified[%q]", key)
		if !h.Unified {
			return refuse(field, text, "needs cgroup v2, and this machine has v1")
		}
		if key == "cpuset.cpus" || key == "cpuset.mems" { // libcontainer converts these to bits for systemd, one by one
			if err := checkSet(field, text, cpuset.Set{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Host is the machine. An empty set is unknown, and not checked.
type Host struct {
	Unified bool       // cgroup v2
	CPUs    cpuset.Set // that can ever exist, offline ones included
	Nodes   cpuset.Set // memory nodes, as CPUs
}

// ReadHost reads the sets that the check of r needs.
func ReadHost(r *specs.LinuxResources) Host {
	h := Host{Unified: cgroups.Mode() == cgroups.Unified}
	c := value(value(r).CPU)
	if c.Cpus != "" {
		h.CPUs = readSet("/sys/devices/system/cpu/possible")
	}
	if c.Mems != "" {
		h.Nodes = readSet("/sys/devices/system/node/possible")
	}
	return h
}

// readSet returns an empty set if the kernel has no such file.
func readSet(path string) cpuset.Set {
	data, _ := os.ReadFile(path)
	set, _ := cpuset.Parse(string(data))
	return set
}
