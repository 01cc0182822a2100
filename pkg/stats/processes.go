// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"time"

	"github.com/containerd/cgroups/v3"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Processes is what the processes of a container without a cgroup use.
type Processes struct {
	Number       uint64
	User, System time.Duration // CPU time
	Memory       uint64        // bytes
}

// Metrics returns those that a cgroup of these processes would have on this machine, without limits, as far as p knows.
func (p Processes) Metrics() Metrics {
	if cgroups.Mode() == cgroups.Unified {
		return &v2.Metrics{
			Pids: &v2.PidsStat{Current: p.Number, Limit: math.MaxUint64},
			CPU: &v2.CPUStat{
				UsageUsec: uint64((p.User + p.System).Microseconds()),
				UserUsec:  uint64(p.User.Microseconds()), SystemUsec: uint64(p.System.Microseconds()),
			},
			Memory: &v2.MemoryStat{Usage: p.Memory, UsageLimit: math.MaxUint64},
		}
	}
	none := &v1.MemoryEntry{} // for consumers that expect all entries: see newMessage
	return &v1.Metrics{
		Pids: &v1.PidsStat{Current: p.Number},
		CPU: &v1.CPUStat{
			Usage:      &v1.CPUUsage{Total: uint64(p.User + p.System), User: uint64(p.User), Kernel: uint64(p.System)},
			Throttling: &v1.Throttle{},
		},
		Memory: &v1.MemoryStat{
			Usage: &v1.MemoryEntry{Usage: p.Memory, Limit: math.MaxInt64 &^ 0xfff}, Swap: none, Kernel: none, KernelTCP: none,
		},
	}
}
