// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"sandbox.internal/shim/pkg/cgroup"
)

// legacyNumbers are the properties of cgroup v1 that libcontainer sets (cgroups v0.1.0 systemd/v1.go,
// genV1ResourcesProperties) and that have the number of a file: all except the quota, and except CPUs and memory nodes,
// which systemd does not write on v1.
var legacyNumbers = map[string]string{
	"memory.limit_in_bytes": "MemoryLimit",
	"cpu.shares":            "CPUShares",
	"cpu.cfs_period_us":     "CPUQuotaPeriodUSec",
	"blkio.weight":          "BlockIOWeight",
	"blkio.bfq.weight":      "BlockIOWeight",
	"pids.max":              "TasksMax",
}

// legacyProperties returns the properties that correspond to a snapshot of cgroup v1's files.
func legacyProperties(snapshot cgroup.Snapshot) ([]dbus.Property, error) {
	const infinity = math.MaxUint64
	var all []dbus.Property
	add := func(name string, value uint64) {
		all = append(all, dbus.Property{Name: name, Value: godbus.MakeVariant(value)})
	}
	files := map[string]string{}
	for path, text := range snapshot {
		files[filepath.Base(path)] = text
	}
	for file, name := range legacyNumbers {
		text, ok := files[file]
		switch {
		case !ok || text == "":
		case text == "max":
			add(name, infinity)
		default:
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			const unlimited = 1 << 62 // the kernel rounds its value for "no limit" down to a page
			if n > unlimited {
				n = infinity
			}
			add(name, n)
		}
	}
	quota, ok := files["cpu.cfs_quota_us"]
	if !ok {
		return all, nil
	}
	const period = "100000" // if nobody asked for one, as in the kernel and libcontainer
	perSecond, err := cpuPerSecond(quota, cmp.Or(files["cpu.cfs_period_us"], period))
	if err != nil {
		return nil, err
	}
	add("CPUQuotaPerSecUSec", perSecond)
	return all, nil
}

// cpuPerSecond returns the CPU time per second that a quota allows, in microseconds, rounded up to a whole percent.
func cpuPerSecond(quota, period string) (uint64, error) {
	const second, percent = 1_000_000, 10_000
	q, err := strconv.ParseInt(quota, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cpu.cfs_quota_us: %w", err)
	}
	if q < 0 {
		return math.MaxUint64, nil
	}
	p, err := strconv.ParseInt(period, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cpu.cfs_period_us: %w", err)
	}
	if p <= 0 {
		return 0, fmt.Errorf("cpu.cfs_period_us %q: must be above 0: %w", period, errdefs.ErrInternal)
	}
	perSecond := q * second / p
	if q > 0 {
		perSecond = max(perSecond, 1) // 0 would be no CPU at all
	}
	return uint64((perSecond + percent - 1) / percent * percent), nil
}
