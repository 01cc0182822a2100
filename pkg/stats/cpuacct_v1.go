// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
)

// tick is the unit of cpuacct.stat (cgroup-v1/cpuacct.rst): USER_HZ is 100 wherever Go runs.
const tick = uint64(10 * time.Millisecond)

func cpuacctV1(string) []source[*v1.Metrics] {
	return []source[*v1.Metrics]{
		{name: "cpuacct.stat", parse: func(text []byte, m *v1.Metrics) error {
			return parseCPUAcctStat(text, cpuOf(m).Usage)
		}},
		single("cpuacct.usage", 0, func(m *v1.Metrics) *uint64 { return &cpuOf(m).Usage.Total }),
		{name: "cpuacct.usage_percpu", parse: func(text []byte, m *v1.Metrics) (err error) {
			cpuOf(m).Usage.PerCPU, err = parsePerCPU(text)
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
