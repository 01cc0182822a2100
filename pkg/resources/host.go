// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"os"
	"slices"

	"github.com/containerd/cgroups/v3"
	lccgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
)

// Host is what the allowed values depend on. An empty member is unknown, and nothing is checked against it.
type Host struct {
	Unified   bool       // cgroup v2
	CPUs      cpuset.Set // that can ever exist, offline ones included
	Nodes     cpuset.Set // memory nodes, as CPUs
	PageSizes []string   // of huge pages, as in the names of the hugetlb controller's files: 2MB
}

// ReadHost reads from the kernel what the allowed values of r depend on (Documentation/ABI: sysfs-devices-system-cpu,
// sysfs-devices-node, sysfs-kernel-mm-hugepages). What r does not need, or the kernel does not tell, stays empty.
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

// readSet is empty where a kernel has no such file, for example one without memory nodes, or a list that is too long.
func readSet(path string) cpuset.Set {
	data, _ := os.ReadFile(path)
	set, err := cpuset.Parse(string(data))
	if err != nil {
		return cpuset.Set{}
	}
	return set
}
