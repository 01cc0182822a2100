// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
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

func cpuV1() []source[*v1.Metrics] {
	return []source[*v1.Metrics]{
		keyed("cpu.stat", cpuStatV1, func(m *v1.Metrics) *v1.Throttle { return ensureCPU(m).Throttling }),
	}
}

var cpuStatV1 = []field[*v1.Throttle]{
	{"nr_periods", func(m *v1.Throttle) *uint64 { return &m.Periods }},
	{"nr_throttled", func(m *v1.Throttle) *uint64 { return &m.ThrottledPeriods }},
	{"throttled_time", func(m *v1.Throttle) *uint64 { return &m.ThrottledTime }},
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

func parseCPUAcctStat(text []byte, m *v1.CPUUsage) error {
	err := parseKeyed(text, cpuacctStat, m)
	m.User *= tick
	m.Kernel *= tick
	return err
}

var cpuacctStat = []field[*v1.CPUUsage]{
	{"user", func(m *v1.CPUUsage) *uint64 { return &m.User }},
	{"system", func(m *v1.CPUUsage) *uint64 { return &m.Kernel }},
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

func rdmaV1() []source[*v1.Metrics] {
	entries := func(name string, of func(*v1.RdmaStat) *[]*v1.RdmaEntry) source[*v1.Metrics] {
		return source[*v1.Metrics]{name: name, parse: func(text []byte, m *v1.Metrics) (err error) {
			*of(ensure(&m.Rdma)), err = parseRDMA(text, func(l rdmaLine) *v1.RdmaEntry {
				return &v1.RdmaEntry{Device: l.device, HcaHandles: l.handles, HcaObjects: l.objects}
			})
			return err
		}}
	}
	return []source[*v1.Metrics]{
		entries("rdma.current", func(m *v1.RdmaStat) *[]*v1.RdmaEntry { return &m.Current }),
		entries("rdma.max", func(m *v1.RdmaStat) *[]*v1.RdmaEntry { return &m.Limit }),
	}
}
