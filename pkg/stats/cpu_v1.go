// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v1 "github.com/containerd/cgroups/v3/cgroup1/stats"

// cpuOf returns the part of the message that the controllers cpu and cpuacct share. Consumers take it that there is all of
// it or nothing (containerd core/metrics/cgroups/v1/cpu.go).
func cpuOf(m *v1.Metrics) *v1.CPUStat {
	if m.CPU == nil {
		m.CPU = &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{}}
	}
	return m.CPU
}

func cpuV1(string) []source[*v1.Metrics] {
	return []source[*v1.Metrics]{{name: "cpu.stat", parse: func(text []byte, m *v1.Metrics) error {
		return parseCPUStatV1(text, cpuOf(m).Throttling)
	}}}
}

func parseCPUStatV1(text []byte, m *v1.Throttle) error { return parseKeyed(text, cpuStatV1, m) }

var cpuStatV1 = []field[*v1.Throttle]{
	{"nr_periods", func(m *v1.Throttle) *uint64 { return &m.Periods }},
	{"nr_throttled", func(m *v1.Throttle) *uint64 { return &m.ThrottledPeriods }},
	{"throttled_time", func(m *v1.Throttle) *uint64 { return &m.ThrottledTime }},
}
