// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	"sandbox.internal/shim/pkg/cgroup"
)

// controlFile is a control file and the message field that it fills. The type of the field determines the format.
type controlFile struct {
	name  string
	field string // dotted path of the message field; "" if a change of the text only means that other files exist
	older string // its name in kernels that lack the first, or ""
	size  string // of huge pages, in a list of entries for each
	part  bool   // without the message that the field is part of, there is no field

	path []int // of the field: an index for each name
}

var (
	commonV1 = []controlFile{
		{name: "pids.current", field: "Pids.Current"},
		{name: "pids.max", field: "Pids.Limit"},
		{name: "cpu.stat", field: "CPU.Throttling"},
		{name: "cpuacct.stat", field: "CPU.Usage"},
		{name: "cpuacct.usage", field: "CPU.Usage.Total"},
		{name: "cpuacct.usage_percpu", field: "CPU.Usage.PerCPU"},
		{name: "memory.stat", field: "Memory"},
		{name: "memory.oom_control", field: "MemoryOomControl"},
	}
	counters = []controlFile{
		{name: "usage_in_bytes", field: "Usage"},
		{name: "max_usage_in_bytes", field: "Max"},
		{name: "failcnt", field: "Failcnt"},
	}
	memoryV1 = []controlFile{
		{name: "memory", field: "Memory.Usage"},
		{name: "memory.memsw", field: "Memory.Swap"},
		{name: "memory.kmem", field: "Memory.Kernel"},
		{name: "memory.kmem.tcp", field: "Memory.KernelTCP"},
	}
	commonV2 = []controlFile{
		{name: "cgroup.controllers"},
		{name: "cgroup.pressure"},
		{name: "pids.current", field: "Pids.Current"},
		{name: "pids.max", field: "Pids.Limit"},
		{name: "cpu.stat", field: "CPU"}, // without the cpu controller it has its first three keys
		{name: "cpu.pressure", field: "CPU.PSI"},
		{name: "memory.stat", field: "Memory"}, // the root has only this; without it there are no others
		{name: "memory.current", field: "Memory.Usage"},
		{name: "memory.max", field: "Memory.UsageLimit"},
		{name: "memory.peak", field: "Memory.MaxUsage"},
		{name: "memory.swap.current", field: "Memory.SwapUsage"},
		{name: "memory.swap.max", field: "Memory.SwapLimit"},
		{name: "memory.swap.peak", field: "Memory.SwapMaxUsage"},
		{name: "memory.events", field: "MemoryEvents"},
		// The file exists without the controller; the message would say that no memory is used.
		{name: "memory.pressure", field: "Memory.PSI", part: true},
		{name: "io.stat", field: "Io.Usage"},
		{name: "io.pressure", field: "Io.PSI"}, // exists without the io controller
	}
	hugetlbV2 = []controlFile{
		{name: "current", field: "Current"},
		{name: "max", field: "Max"},
		{name: "events", field: ""},
	}
)

// blkioV1 lists the files of block devices. The counters are those of the scheduler BFQ, of the throttle policy (since
// Linux 6.10 only for devices with a limit), or of CFQ (until Linux 5.0). The last with numbers is used.
func blkioV1() (all []controlFile) {
	for _, kind := range []struct{ name, field string }{
		{"io_serviced", "IoServicedRecursive"},
		{"io_service_bytes", "IoServiceBytesRecursive"},
		{"io_queued", "IoQueuedRecursive"},
		{"io_service_time", "IoServiceTimeRecursive"},
		{"io_wait_time", "IoWaitTimeRecursive"},
		{"io_merged", "IoMergedRecursive"},
		{"time", "IoTimeRecursive"},
		{"sectors", "SectorsRecursive"},
	} {
		for _, by := range []string{"blkio.bfq.", "blkio.throttle.", "blkio."} {
			f := controlFile{name: by + kind.name + "_recursive", field: "Blkio." + kind.field}
			if by == "blkio.throttle." {
				f.older = by + kind.name
			}
			all = append(all, f)
		}
	}
	return all
}

func below(prefix, field string, list []controlFile) []controlFile {
	all := make([]controlFile, 0, len(list))
	for _, f := range list {
		f.name, f.field = prefix+"."+f.name, strings.TrimSuffix(field+"."+f.field, ".")
		all = append(all, f)
	}
	return all
}

// The files of any cgroup, but for those of huge pages.
var (
	anyV1 = sync.OnceValue(func() []*controlFile {
		all := append(slices.Clip(commonV1), blkioV1()...)
		for _, kind := range memoryV1 {
			all = append(all, below(kind.name, kind.field, counters)...)
			all = append(all, controlFile{name: kind.name + ".limit_in_bytes", field: kind.field + ".Limit"})
		}
		return located[v1.Metrics](all)
	})
	anyV2 = sync.OnceValue(func() []*controlFile { return located[v2.Metrics](commonV2) })
)

func filesV1(c *cgroup.Cgroup) []*controlFile {
	return append(slices.Clip(anyV1()), located[v1.Metrics](hugePages(c, "usage_in_bytes", counters))...)
}

func filesV2(c *cgroup.Cgroup) []*controlFile {
	return append(slices.Clip(anyV2()), located[v2.Metrics](hugePages(c, "current", hugetlbV2))...)
}

// located finds the fields of files in a message.
func located[Message any](files []controlFile) (all []*controlFile) {
	for _, f := range files {
		f.path = fieldPath(reflect.TypeFor[Message](), f.field)
		all = append(all, &f)
	}
	return all
}

// hugePages lists the files hugetlb.SIZE.* of each size of huge pages.
func hugePages(c *cgroup.Cgroup, last string, files []controlFile) (all []controlFile) {
	entries, _ := os.ReadDir(c.Path("hugetlb")) // if the cgroup is gone, Reader will see it
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), "hugetlb.")
		size, ends := strings.CutSuffix(name, "."+last)
		if ours && ends && !strings.Contains(size, ".") { // not hugetlb.SIZE.rsvd.LAST
			for _, f := range below("hugetlb."+size, "Hugetlb", files) {
				f.size = size
				all = append(all, f)
			}
		}
	}
	return all
}
