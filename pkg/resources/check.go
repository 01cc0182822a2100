// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package resources is about linux.resources of the OCI runtime specification (config-linux.md, Control groups): which
// values are allowed, which control files each field is written to, and what an update adds to what was asked for
// before.
//
// It writes nothing and has no goroutine and no lock. Its functions depend only on their arguments, except ReadHost,
// which reads what the machine has.
//
// Check refuses only what the kernel or libcontainer would refuse later on every machine like h, or would silently
// change. What clients send for "not set" (no value, 0, an empty string) passes. Each error names the field as in
// config.json, the value and what is allowed, and is an errdefs.ErrInvalidArgument.
package resources

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	lccgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
)

// Check refuses values that are not allowed on h. r is all that is requested for a container; nil requests nothing.
func Check(r *specs.LinuxResources, h Host) error {
	if r == nil {
		return nil
	}
	err := cmp.Or(
		checkMemory(value(r.Memory)), checkCPU(value(r.CPU), h), checkCPUSet(value(r.CPU), h), checkBlockIO(value(r.BlockIO)),
		checkHugePages(r.HugepageLimits, h), checkNames(r), checkDevices(r.Devices), checkUnified(r.Unified, h),
	)
	if err != nil {
		return fmt.Errorf("linux.resources.%w", err)
	}
	return nil
}

// refuse returns the error for a value that is not allowed. allowed is a format for args.
func refuse(field string, value any, allowed string, args ...any) error {
	if text, ok := value.(string); ok {
		value = fmt.Sprintf("%q", text)
	}
	return fmt.Errorf("%s %v: %s: %w", field, value, fmt.Sprintf(allowed, args...), errdefs.ErrInvalidArgument)
}

func refuseIf(bad bool, field string, value any, allowed string, args ...any) error {
	if !bad {
		return nil
	}
	return refuse(field, value, allowed, args...)
}

// value returns what p points to, or 0, which most fields take as unset.
func value[T any](p *T) T {
	var v T
	if p != nil {
		v = *p
	}
	return v
}

func checkMemory(m specs.LinuxMemory) error {
	limit, reservation, swap, kernelTCP := value(m.Limit), value(m.Reservation), value(m.Swap), value(m.KernelTCP)
	swappiness := value(m.Swappiness)
	const atLeast = "must be at least 0, or -1 for no limit"
	const maxSwappiness = 100    // kernel, cgroup-v1/memory.rst
	const unset = math.MaxUint64 // -1 of clients with a signed field
	return cmp.Or(
		refuseIf(limit < -1, "memory.limit", limit, atLeast),
		refuseIf(reservation < -1, "memory.reservation", reservation, atLeast),
		refuseIf(swap < -1, "memory.swap", swap, atLeast),
		refuseIf(kernelTCP < -1, "memory.kernelTCP", kernelTCP, atLeast),
		refuseIf(swap > 0 && limit == 0, "memory.swap", swap,
			"limits memory and swap together, so memory.limit must be set too"),
		refuseIf(swap > 0 && swap < limit, "memory.swap", swap,
			"limits memory and swap together, must be at least memory.limit %d, or -1 for no limit", limit),
		refuseIf(swappiness > maxSwappiness && swappiness != unset, "memory.swappiness", swappiness,
			"must be from 0 to %d", maxSwappiness),
	)
}

// The kernel's limits of CPU time: MIN_SHARES and MAX_SHARES in kernel/sched/sched.h; scheduler/sched-bwc.rst, in µs.
const (
	minShares = 2
	maxShares = 262144
	minQuota  = 1000
	minPeriod = 1000
	maxPeriod = 1000000
)

func checkCPU(c specs.LinuxCPU, h Host) error {
	if h.Unified {
		c.Shares = nil // any number is converted to a weight (opencontainers/cgroups, ConvertCPUSharesToCgroupV2Value)
	}
	quota, burst, idle := value(c.Quota), value(c.Burst), value(c.Idle)
	runtime, period := value(c.RealtimeRuntime), value(c.RealtimePeriod)
	return cmp.Or(
		checkRange("cpu.shares", value(c.Shares), minShares, maxShares, ""),
		refuseIf(quota > 0 && quota < minQuota, "cpu.quota", quota,
			"must be at least %d µs, 0 (unset), or -1 for no limit", minQuota),
		checkRange("cpu.period", value(c.Period), minPeriod, maxPeriod, " µs"),
		refuseIf(quota > 0 && burst > uint64(quota), "cpu.burst", burst, "must be at most cpu.quota %d", quota),
		refuseIf(idle != 0 && idle != 1, "cpu.idle", idle, "must be 0 or 1"),
		// The runtime is part of the period (scheduler/sched-rt-group.rst).
		refuseIf(runtime > 0 && period != 0 && uint64(runtime) > period, "cpu.realtimeRuntime", runtime,
			"must be at most cpu.realtimePeriod %d", period),
	)
}

func checkCPUSet(c specs.LinuxCPU, h Host) error {
	for _, f := range []struct {
		name, list string
		all        cpuset.Set
	}{
		{"cpu.cpus", c.Cpus, h.CPUs},
		{"cpu.mems", c.Mems, h.Nodes},
	} {
		set, err := parseSet(f.name, f.list)
		if err != nil {
			return err
		}
		if missing := set.Difference(f.all); !f.all.Empty() && !missing.Empty() {
			return refuse(f.name, f.list, "%s does not exist here, must be among %s", missing, f.all)
		}
	}
	return nil
}

func parseSet(field, list string) (cpuset.Set, error) {
	set, err := cpuset.Parse(list)
	if err != nil {
		err = refuse(field, list, "must be numbers and ranges of them from 0 to %d, such as 0-3,7", cpuset.Limit-1)
	}
	return set, err
}

// The weights of the OCI runtime specification (config-linux.md, Block IO), which are those of cgroup v1.
const (
	minWeight = 10
	maxWeight = 1000
)

func checkBlockIO(b specs.LinuxBlockIO) error {
	if err := checkWeights("blockIO", b.Weight, b.LeafWeight); err != nil {
		return err
	}
	for i, d := range b.WeightDevice {
		field := fmt.Sprintf("blockIO.weightDevice[%d]", i)
		if err := cmp.Or(checkNumbers(field, d.Major, d.Minor, 0), checkWeights(field, d.Weight, d.LeafWeight)); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name    string
		devices []specs.LinuxThrottleDevice
	}{
		{"throttleReadBpsDevice", b.ThrottleReadBpsDevice},
		{"throttleWriteBpsDevice", b.ThrottleWriteBpsDevice},
		{"throttleReadIOPSDevice", b.ThrottleReadIOPSDevice},
		{"throttleWriteIOPSDevice", b.ThrottleWriteIOPSDevice},
	} {
		for i, d := range f.devices {
			if err := checkNumbers(fmt.Sprintf("blockIO.%s[%d]", f.name, i), d.Major, d.Minor, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkWeights(field string, weight, leafWeight *uint16) error {
	return cmp.Or(
		checkRange(field+".weight", value(weight), minWeight, maxWeight, ""),
		checkRange(field+".leafWeight", value(leafWeight), minWeight, maxWeight, ""),
	)
}

// checkRange refuses a number that is neither 0, which is unset, nor in a range.
func checkRange[N uint16 | uint64](field string, v, least, most N, unit string) error {
	bad := v != 0 && (v < least || v > most)
	return refuseIf(bad, field, v, "must be 0 (unset) or from %d to %d%s", least, most, unit)
}

func checkNumbers(field string, major, minor, least int64) error {
	const most, allowed = math.MaxUint32, "must be from %d to %d"
	return cmp.Or(
		refuseIf(major < least || major > most, field+".major", major, allowed, least, int64(most)),
		refuseIf(minor < least || minor > most, field+".minor", minor, allowed, least, int64(most)),
	)
}

func checkDevices(rules []specs.LinuxDeviceCgroup) error {
	for i, d := range rules {
		field := fmt.Sprintf("devices[%d]", i)
		if !slices.Contains([]string{"", "a", "b", "c"}, d.Type) {
			return refuse(field+".type", d.Type, "must be a, b, c, or empty for a")
		}
		if d.Access == "" || strings.Trim(d.Access, "rwm") != "" {
			return refuse(field+".access", d.Access, "must be some of r, w and m")
		}
		const wildcard = -1
		if err := checkNumbers(field, value(d.Major), value(d.Minor), wildcard); err != nil {
			return err
		}
	}
	return nil
}

// pageSizeForm is compiled by the first check that needs it.
var pageSizeForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^[1-9][0-9]*[KMG]B$") })

func checkHugePages(limits []specs.LinuxHugepageLimit, h Host) error {
	for i, l := range limits {
		field := fmt.Sprintf("hugepageLimits[%d].pageSize", i)
		if !pageSizeForm().MatchString(l.Pagesize) {
			return refuse(field, l.Pagesize, "must be a number and KB, MB or GB, such as 2MB")
		}
		if len(h.PageSizes) > 0 && !slices.Contains(h.PageSizes, l.Pagesize) {
			return refuse(field, l.Pagesize, "must be one that this kernel has: %s", strings.Join(h.PageSizes, ", "))
		}
	}
	return nil
}

// checkNames checks names that stand in a line of a control file.
func checkNames(r *specs.LinuxResources) error {
	isWord := func(name string) bool { return name != "" && !strings.ContainsAny(name, " \t\n\x00") }
	for name := range r.Rdma {
		if !isWord(name) {
			return refuse(fmt.Sprintf("rdma[%q]", name), "", "must be the name of a device, without blanks")
		}
	}
	for i, p := range value(r.Network).Priorities {
		if !isWord(p.Name) {
			return refuse(fmt.Sprintf("network.priorities[%d].name", i), p.Name,
				"must be the name of an interface, without blanks")
		}
	}
	return nil
}

func checkUnified(files map[string]string, h Host) error {
	for key, text := range files {
		field := fmt.Sprintf("unified[%q]", key)
		if !h.Unified {
			return refuse(field, text, "needs cgroup v2, and this machine has v1")
		}
		if controller, _, ok := strings.Cut(key, "."); !ok || controller == "" || strings.ContainsAny(key, "/\x00") {
			return refuse(field, text, "the key must be the name of a control file, such as memory.high")
		}
		if key == "cpuset.cpus" || key == "cpuset.mems" { // libcontainer converts these to bits for systemd, one by one
			if _, err := parseSet(field, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// Host is what the allowed values depend on. An empty member is unknown, and nothing is checked against it.
type Host struct {
	Unified   bool       // cgroup v2
	CPUs      cpuset.Set // that can ever exist, offline ones included
	Nodes     cpuset.Set // memory nodes, as CPUs
	PageSizes []string   // of huge pages, as in the names of the hugetlb controller's files: 2MB
}

// ReadHost reads from the kernel what the allowed values of r depend on (Documentation/ABI: sysfs-devices-system-cpu,
// sysfs-devices-node, sysfs-kernel-mm-hugepages). What r does not need, or the kernel does not report, stays empty.
func ReadHost(r *specs.LinuxResources) Host {
	h := Host{Unified: cgroups.Mode() == cgroups.Unified}
	if r == nil {
		return h
	}
	if r.CPU != nil && r.CPU.Cpus != "" {
		h.CPUs = readSet("/sys/devices/system/cpu/possible")
	}
	if r.CPU != nil && r.CPU.Mems != "" {
		h.Nodes = readSet("/sys/devices/system/node/possible")
	}
	if len(r.HugepageLimits) > 0 {
		h.PageSizes = slices.Sorted(slices.Values(lccgroups.HugePageSizes()))
	}
	return h
}

// readSet returns nothing if a kernel has no such file, for example one without memory nodes, or has too long a list.
func readSet(path string) cpuset.Set {
	data, _ := os.ReadFile(path)
	set, _ := cpuset.Parse(string(data))
	return set
}
