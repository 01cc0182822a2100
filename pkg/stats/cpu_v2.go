// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v2 "github.com/containerd/cgroups/v3/cgroup2/stats"

// cpuV2 lists the files about CPU time. Without the cpu controller cpu.stat has its first three keys.
func cpuV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		{name: "cpu.stat", parse: func(text []byte, m *v2.Metrics) error {
			m.CPU = &v2.CPUStat{}
			return parseCPUStatV2(text, m.CPU)
		}},
		{name: "cpu.pressure", parse: func(text []byte, m *v2.Metrics) (err error) {
			if m.CPU == nil {
				m.CPU = &v2.CPUStat{}
			}
			m.CPU.PSI, err = parsePressure(text)
			return err
		}},
	}
}

func parseCPUStatV2(text []byte, m *v2.CPUStat) error { return parseKeyed(text, cpuStatV2, m) }

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
