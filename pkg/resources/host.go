// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cpuset"
)

// Host is what a machine has, as far as the allowed values depend on it. What is empty is not known, and not checked.
type Host struct {
	Unified   bool       // cgroup v2
	CPUs      cpuset.Set // that can ever be there, also when they are offline now
	Nodes     cpuset.Set // memory nodes, as CPUs
	PageSizes []string   // of huge pages, as the hugetlb controller's files name them: 2MB
}

// ReadHost asks the kernel of this machine for what the allowed values of r depend on (Documentation/ABI: sysfs-devices-system-cpu,
// sysfs-devices-node, sysfs-kernel-mm-hugepages). What r does not need, or the kernel does not tell, stays empty.
func ReadHost(r *specs.LinuxResources) Host {
	h := Host{Unified: cgroups.Mode() == cgroups.Unified}
	if r == nil {
		return h
	}
	if r.CPU != nil && r.CPU.Cpus != "" {
		h.CPUs = readList("/sys/devices/system/cpu/possible")
	}
	if r.CPU != nil && r.CPU.Mems != "" {
		h.Nodes = readList("/sys/devices/system/node/possible")
	}
	if len(r.HugepageLimits) > 0 {
		h.PageSizes = pageSizes("/sys/kernel/mm/hugepages")
	}
	return h
}

func readList(path string) cpuset.Set {
	data, err := os.ReadFile(path)
	if err != nil {
		return cpuset.Set{} // a kernel without memory nodes has no such file
	}
	set, err := cpuset.Parse(string(data))
	if err != nil {
		return cpuset.Set{} // more CPUs than a kernel can have: let it judge
	}
	return set
}

// pageSizes lists the directories hugepages-2048kB and so on of dir.
func pageSizes(dir string) []string {
	var sizes []string
	entries, _ := os.ReadDir(dir) // a kernel without huge pages has no such directory
	for _, entry := range entries {
		text := strings.TrimSuffix(strings.TrimPrefix(entry.Name(), "hugepages-"), "kB")
		if kib, err := strconv.ParseUint(text, 10, 64); err == nil {
			sizes = append(sizes, pageSize(kib))
		}
	}
	slices.Sort(sizes)
	return sizes
}

// pageSize is the kernel's short name of a size (mm/hugetlb_cgroup.c, mem_fmt).
func pageSize(kib uint64) string {
	const step = 1024
	size, units := kib, []string{"KB", "MB", "GB"}
	for size >= step && len(units) > 1 {
		size, units = size/step, units[1:]
	}
	return strconv.FormatUint(size, 10) + units[0]
}
