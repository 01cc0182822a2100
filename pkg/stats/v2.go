// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
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

// cpuV2 lists the files about CPU time. Without the cpu controller cpu.stat has its first three keys.
func cpuV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		keyed("cpu.stat", cpuStatV2, func(m *v2.Metrics) *v2.CPUStat { return ensure(&m.CPU) }),
		pressure("cpu.pressure", func(m *v2.Metrics) **v2.PSIStats { return &ensure(&m.CPU).PSI }),
	}
}

var cpuStatV2 = []field[*v2.CPUStat]{
	{"usage_usec", func(m *v2.CPUStat) *uint64 { return &m.UsageUsec }},
	{"user_usec", func(m *v2.CPUStat) *uint64 { return &m.UserUsec }},
	{"system_usec", func(m *v2.CPUStat) *uint64 { return &m.SystemUsec }},
	{"nr_periods", func(m *v2.CPUStat) *uint64 { return &m.NrPeriods }},
	{"nr_throttled", func(m *v2.CPUStat) *uint64 { return &m.NrThrottled }},
	{"throttled_usec", func(m *v2.CPUStat) *uint64 { return &m.ThrottledUsec }},
	{"nr_bursts", func(m *v2.CPUStat) *uint64 { return &m.NrBursts }},
	{"burst_usec", func(m *v2.CPUStat) *uint64 { return &m.BurstUsec }},
}

func rdmaV2() []source[*v2.Metrics] {
	entries := func(name string, of func(*v2.RdmaStat) *[]*v2.RdmaEntry) source[*v2.Metrics] {
		return source[*v2.Metrics]{name: name, parse: func(text []byte, m *v2.Metrics) (err error) {
			*of(ensure(&m.Rdma)), err = parseRDMA(text, rdmaEntryV2)
			return err
		}}
	}
	return []source[*v2.Metrics]{
		entries("rdma.current", func(m *v2.RdmaStat) *[]*v2.RdmaEntry { return &m.Current }),
		entries("rdma.max", func(m *v2.RdmaStat) *[]*v2.RdmaEntry { return &m.Limit }),
	}
}

func rdmaEntryV2(l rdmaLine) *v2.RdmaEntry {
	return &v2.RdmaEntry{Device: l.device, HcaHandles: l.handles, HcaObjects: l.objects}
}

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

var hugetlbEvents = []field[*v2.HugeTlbStat]{
	{"max", func(m *v2.HugeTlbStat) *uint64 { return &m.Failcnt }},
}
