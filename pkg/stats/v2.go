// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// directoriesV2 lists what is read of a cgroup at dir.
func directoriesV2(dir string) []directory[*v2.Metrics] {
	sources := slices.Concat(
		[]source[*v2.Metrics]{unchanged("cgroup.controllers"), unchanged("cgroup.pressure")},
		pidsV2(), cpuV2(), memoryV2(), rdmaV2(), ioV2(),
	)
	for _, size := range hugePages(dir, "current") {
		sources = append(sources, hugetlbV2(size)...)
	}
	return []directory[*v2.Metrics]{{dir, sources}}
}

// unchanged is a file on which it depends which others exist. When it changes, all are opened again.
func unchanged(name string) source[*v2.Metrics] {
	var first []byte
	return source[*v2.Metrics]{name: name, parse: func(text []byte, _ *v2.Metrics) error {
		switch {
		case first == nil:
			first = append([]byte{}, text...)
		case !bytes.Equal(first, text):
			return errStale
		}
		return nil
	}}
}

// pressure is a pressure file. of returns nil where the message has no place for it.
func pressure(name string, of func(*v2.Metrics) **v2.PSIStats) source[*v2.Metrics] {
	return source[*v2.Metrics]{name: name, parse: func(text []byte, m *v2.Metrics) error {
		psi, err := parsePressure(text)
		if to := of(m); to != nil && err == nil {
			*to = psi
		}
		return err
	}}
}

func pidsV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		single("pids.current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &ensure(&m.Pids).Current }),
		single("pids.max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &ensure(&m.Pids).Limit }),
	}
}

var cpuStatV2 = fieldsOf[v2.CPUStat]()

// cpuV2 lists the files about CPU time. Without the cpu controller cpu.stat has its first three keys.
func cpuV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		keyed("cpu.stat", cpuStatV2, func(m *v2.Metrics) *v2.CPUStat { return ensure(&m.CPU) }),
		pressure("cpu.pressure", func(m *v2.Metrics) **v2.PSIStats { return &ensure(&m.CPU).PSI }),
	}
}

var rdmaEntryV2 = fieldsOf[v2.RdmaEntry]("hca_handle", "HcaHandles", "hca_object", "HcaObjects")

func parseRDMAV2(text []byte) ([]*v2.RdmaEntry, error) {
	return parseRDMA(text, rdmaEntryV2, func(e *v2.RdmaEntry) *string { return &e.Device })
}

func rdmaV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		{name: "rdma.current", parse: func(text []byte, m *v2.Metrics) (err error) {
			ensure(&m.Rdma).Current, err = parseRDMAV2(text)
			return err
		}},
		{name: "rdma.max", parse: func(text []byte, m *v2.Metrics) (err error) {
			ensure(&m.Rdma).Limit, err = parseRDMAV2(text)
			return err
		}},
	}
}

var hugetlbEvents = fieldsOf[v2.HugeTlbStat]("max", "Failcnt")

// hugetlbV2 lists the files of one size of huge pages.
func hugetlbV2(size string) []source[*v2.Metrics] {
	entry := func(m *v2.Metrics) *v2.HugeTlbStat {
		return findOrAppend(&m.Hugetlb, func(h *v2.HugeTlbStat) *string { return &h.Pagesize }, size)
	}
	prefix := "hugetlb." + size
	return []source[*v2.Metrics]{
		single(prefix+".current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &entry(m).Current }),
		single(prefix+".max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &entry(m).Max }),
		keyed(prefix+".events", hugetlbEvents, entry),
	}
}

var (
	// Since Linux 5.9 the kernel counts refaults of anonymous memory and of files separately; the message has the sum,
	// which older kernels write.
	memoryStatV2 = fieldsOf[v2.MemoryStat](
		"workingset_refault_anon", "WorkingsetRefault", "workingset_refault_file", "WorkingsetRefault",
		"workingset_activate_anon", "WorkingsetActivate", "workingset_activate_file", "WorkingsetActivate",
	)
	memoryEvents = fieldsOf[v2.MemoryEvents]()
)

// memoryV2 lists the files of the memory controller. memory.stat comes first: without it there are no others. The root
// has memory.stat alone.
func memoryV2() []source[*v2.Metrics] {
	memory := func(m *v2.Metrics) *v2.MemoryStat { return ensure(&m.Memory) }
	return []source[*v2.Metrics]{
		keyed("memory.stat", memoryStatV2, memory),
		single("memory.current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).Usage }),
		single("memory.max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).UsageLimit }),
		single("memory.peak", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).MaxUsage }),
		single("memory.swap.current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).SwapUsage }),
		single("memory.swap.max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).SwapLimit }),
		single("memory.swap.peak", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).SwapMaxUsage }),
		keyed("memory.events", memoryEvents, func(m *v2.Metrics) *v2.MemoryEvents { return ensure(&m.MemoryEvents) }),
		pressure("memory.pressure", func(m *v2.Metrics) **v2.PSIStats {
			if m.Memory == nil {
				return nil // the file exists without the controller; the message would say that no memory is used
			}
			return &m.Memory.PSI
		}),
	}
}

var ioStat = fieldsOf[v2.IOEntry]()

// ioV2 lists the files about block devices. io.pressure exists without the io controller.
func ioV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		{name: "io.stat", parse: func(text []byte, m *v2.Metrics) (err error) {
			ensure(&m.Io).Usage, err = parseIOStat(text)
			return err
		}},
		pressure("io.pressure", func(m *v2.Metrics) **v2.PSIStats { return &ensure(&m.Io).PSI }),
	}
}

// parseIOStat reads lines such as
//
//	254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6
//
// Linux 5.13 to 5.16 does not end the line of a device that has no numbers, so the numbers are those of the last device
// before them.
func parseIOStat(text []byte) ([]*v2.IOEntry, error) {
	var entries []*v2.IOEntry
	for line := range bytes.Lines(text) {
		var entry *v2.IOEntry
		for word := range bytes.FieldsSeq(line) {
			key, value, pair := bytes.Cut(word, []byte("="))
			if !pair {
				if major, minor, ok := parseDevice(word); ok {
					entry = &v2.IOEntry{Major: major, Minor: minor}
				}
				continue
			}
			if entry == nil {
				break
			}
			if err := ioStat.add(key, value, entry); err != nil {
				return nil, fmt.Errorf("%d:%d: %w", entry.Major, entry.Minor, err)
			}
		}
		if entry != nil {
			entries = append(entries, entry)
		}
	}
	return entries, nil
}
