// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"

	"sandbox.internal/shim/pkg/cgroup"
)

// directoriesV1 lists what is read of a cgroup: a directory for each controller that is mounted, wherever that is.
func directoriesV1(c *cgroup.Cgroup) []directory[*v1.Metrics] {
	var dirs []directory[*v1.Metrics]
	for _, controller := range []struct {
		name  string
		files []source[*v1.Metrics]
	}{
		{"pids", pidsV1()},
		{"cpu", cpuV1()},
		{"cpuacct", cpuacctV1()},
		{"memory", memoryV1()},
		{"blkio", blkioV1()},
		{"hugetlb", hugetlbV1(c.Path("hugetlb"))},
		{"rdma", rdmaV1()},
	} {
		if dir := c.Path(controller.name); dir != "" {
			dirs = append(dirs, directory[*v1.Metrics]{dir, controller.files})
		}
	}
	return dirs
}

// pidsV1 lists the files of the pids controller. No limit is 0 in the v1 message.
func pidsV1() []source[*v1.Metrics] {
	return []source[*v1.Metrics]{
		single("pids.current", 0, func(m *v1.Metrics) *uint64 { return &ensure(&m.Pids).Current }),
		single("pids.max", 0, func(m *v1.Metrics) *uint64 { return &ensure(&m.Pids).Limit }),
	}
}

// ensureCPU returns the part of the message that the controllers cpu and cpuacct share. Consumers expect all of it or
// nothing (containerd core/metrics/cgroups/v1/cpu.go).
func ensureCPU(m *v1.Metrics) *v1.CPUStat {
	if m.CPU == nil {
		m.CPU = &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{}}
	}
	return m.CPU
}

var cpuStatV1 = fieldsOf[v1.Throttle]("nr_periods", "Periods", "nr_throttled", "ThrottledPeriods")

func cpuV1() []source[*v1.Metrics] {
	return []source[*v1.Metrics]{
		keyed("cpu.stat", cpuStatV1, func(m *v1.Metrics) *v1.Throttle { return ensureCPU(m).Throttling }),
	}
}

// tick is the unit of cpuacct.stat (cgroup-v1/cpuacct.rst): USER_HZ is 100 wherever Go runs.
const tick = uint64(10 * time.Millisecond)

func cpuacctV1() []source[*v1.Metrics] {
	return []source[*v1.Metrics]{
		{name: "cpuacct.stat", parse: func(text []byte, m *v1.Metrics) error {
			return parseCPUAcctStat(text, ensureCPU(m).Usage)
		}},
		single("cpuacct.usage", 0, func(m *v1.Metrics) *uint64 { return &ensureCPU(m).Usage.Total }),
		{name: "cpuacct.usage_percpu", parse: func(text []byte, m *v1.Metrics) (err error) {
			ensureCPU(m).Usage.PerCPU, err = parsePerCPU(text)
			return err
		}},
	}
}

var cpuacctStat = fieldsOf[v1.CPUUsage]("system", "Kernel")

func parseCPUAcctStat(text []byte, m *v1.CPUUsage) error {
	err := parseKeyed(text, cpuacctStat, m)
	m.User *= tick
	m.Kernel *= tick
	return err
}

// parsePerCPU reads the nanoseconds on each CPU, all in one line.
func parsePerCPU(text []byte) ([]uint64, error) {
	var usage []uint64
	for word := range bytes.FieldsSeq(text) {
		n, err := number(word, 0)
		if err != nil {
			return nil, err
		}
		usage = append(usage, n)
	}
	return usage, nil
}

// hugetlbV1 lists the files of each size of huge pages.
func hugetlbV1(dir string) []source[*v1.Metrics] {
	var sources []source[*v1.Metrics]
	for _, size := range hugePages(dir, "usage_in_bytes") {
		entry := func(m *v1.Metrics) *v1.HugetlbStat {
			return findOrAppend(&m.Hugetlb, func(h *v1.HugetlbStat) *string { return &h.Pagesize }, size)
		}
		prefix := "hugetlb." + size
		sources = append(sources,
			single(prefix+".usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Usage }),
			single(prefix+".max_usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Max }),
			single(prefix+".failcnt", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Failcnt }),
		)
	}
	return sources
}

var rdmaEntryV1 = fieldsOf[v1.RdmaEntry]("hca_handle", "HcaHandles", "hca_object", "HcaObjects")

func parseRDMAV1(text []byte) ([]*v1.RdmaEntry, error) {
	return parseRDMA(text, rdmaEntryV1, func(e *v1.RdmaEntry) *string { return &e.Device })
}

func rdmaV1() []source[*v1.Metrics] {
	return []source[*v1.Metrics]{
		{name: "rdma.current", parse: func(text []byte, m *v1.Metrics) (err error) {
			ensure(&m.Rdma).Current, err = parseRDMAV1(text)
			return err
		}},
		{name: "rdma.max", parse: func(text []byte, m *v1.Metrics) (err error) {
			ensure(&m.Rdma).Limit, err = parseRDMAV1(text)
			return err
		}},
	}
}

var (
	memoryStatV1 = fieldsOf[v1.MemoryStat]("hierarchical_memsw_limit", "HierarchicalSwapLimit")
	oomControl   = fieldsOf[v1.MemoryOomControl]()
)

// memoryV1 lists the files of the memory controller. Consumers in containerd expect the entries for swap and kernel
// memory also where the kernel does not account them (CONFIG_SWAP, cgroup.memory=nokmem). They are zero then.
func memoryV1() []source[*v1.Metrics] {
	memory := func(m *v1.Metrics) *v1.MemoryStat {
		if m.Memory == nil {
			m.Memory = &v1.MemoryStat{
				Usage: &v1.MemoryEntry{}, Swap: &v1.MemoryEntry{}, Kernel: &v1.MemoryEntry{}, KernelTCP: &v1.MemoryEntry{},
			}
		}
		return m.Memory
	}
	sources := []source[*v1.Metrics]{
		keyed("memory.stat", memoryStatV1, memory),
		keyed("memory.oom_control", oomControl,
			func(m *v1.Metrics) *v1.MemoryOomControl { return ensure(&m.MemoryOomControl) }),
	}
	for _, kind := range []struct {
		prefix string
		entry  func(*v1.MemoryStat) *v1.MemoryEntry
	}{
		{"memory", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.Usage }},
		{"memory.memsw", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.Swap }},
		{"memory.kmem", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.Kernel }},
		{"memory.kmem.tcp", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.KernelTCP }},
	} {
		entry := func(m *v1.Metrics) *v1.MemoryEntry { return kind.entry(memory(m)) }
		sources = append(sources,
			single(kind.prefix+".usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Usage }),
			single(kind.prefix+".max_usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Max }),
			single(kind.prefix+".failcnt", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Failcnt }),
			single(kind.prefix+".limit_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Limit }),
		)
	}
	return sources
}

// blkioV1 lists the files of the blkio controller. Who counts depends on the kernel: the I/O scheduler BFQ; the
// throttle policy, in newer kernels including nested cgroups, but since Linux 6.10 only for devices with a limit; until
// Linux 5.0 the scheduler CFQ. The last in this order that has numbers counts.
func blkioV1() []source[*v1.Metrics] {
	entries := func(name, older string, of func(*v1.BlkIOStat) *[]*v1.BlkIOEntry) source[*v1.Metrics] {
		return source[*v1.Metrics]{name: name, older: older, parse: func(text []byte, m *v1.Metrics) error {
			list, err := parseBlkio(text)
			if blkio := ensure(&m.Blkio); len(list) > 0 {
				*of(blkio) = list
			}
			return err
		}}
	}
	serviced := func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoServicedRecursive }
	serviceBytes := func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoServiceBytesRecursive }
	return []source[*v1.Metrics]{
		entries("blkio.bfq.io_serviced_recursive", "", serviced),
		entries("blkio.bfq.io_service_bytes_recursive", "", serviceBytes),
		entries("blkio.throttle.io_serviced_recursive", "blkio.throttle.io_serviced", serviced),
		entries("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes", serviceBytes),
		entries("blkio.io_serviced_recursive", "", serviced),
		entries("blkio.io_service_bytes_recursive", "", serviceBytes),
		entries("blkio.io_queued_recursive", "blkio.bfq.io_queued_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoQueuedRecursive }),
		entries("blkio.io_service_time_recursive", "blkio.bfq.io_service_time_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoServiceTimeRecursive }),
		entries("blkio.io_wait_time_recursive", "blkio.bfq.io_wait_time_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoWaitTimeRecursive }),
		entries("blkio.io_merged_recursive", "blkio.bfq.io_merged_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoMergedRecursive }),
		entries("blkio.time_recursive", "blkio.bfq.time_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.IoTimeRecursive }),
		entries("blkio.sectors_recursive", "blkio.bfq.sectors_recursive",
			func(b *v1.BlkIOStat) *[]*v1.BlkIOEntry { return &b.SectorsRecursive }),
	}
}

// parseBlkio reads lines such as "8:0 Read 12" and, in the files for time and sectors, "8:0 12". The last line is a
// total over the devices, which the message has no place for.
func parseBlkio(text []byte) ([]*v1.BlkIOEntry, error) {
	var entries []*v1.BlkIOEntry
	var last []byte // the device of the line before
	var name string
	for line := range bytes.Lines(text) {
		device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		major, minor, ok := parseDevice(device)
		if !ok {
			continue
		}
		if !bytes.Equal(device, last) {
			last, name = device, deviceName(string(device))
		}
		op, value, both := bytes.Cut(rest, []byte(" "))
		if !both {
			op, value = nil, rest
		}
		n, err := number(value, 0)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", device, op, err)
		}
		entries = append(entries, &v1.BlkIOEntry{Op: string(op), Device: name, Major: major, Minor: minor, Value: n})
	}
	return entries, nil
}

// deviceName returns the path of a block device's node, as udev names it, or "" if there is none any more. The kernel
// writes a slash in a name as an exclamation mark (sysfs).
func deviceName(device string) string {
	target, err := os.Readlink("/sys/dev/block/" + device)
	if err != nil {
		return ""
	}
	return "/dev/" + strings.ReplaceAll(path.Base(target), "!", "/")
}
