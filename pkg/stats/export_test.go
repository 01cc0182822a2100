// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// What the tests of the parsers see.
var (
	Number           = number
	ParseBlkio       = parseBlkio
	ParseCPUAcctStat = parseCPUAcctStat
	ParseIOStat      = parseIOStat
	ParsePerCPU      = parsePerCPU
	ParsePressure    = parsePressure
)

func ParseCPUStatV1(text []byte, m *v1.Throttle) error { return parseKeyed(text, cpuStatV1, m) }
func ParseCPUStatV2(text []byte, m *v2.CPUStat) error  { return parseKeyed(text, cpuStatV2, m) }
func ParseHugetlbEvent(text []byte, m *v2.HugeTlbStat) error {
	return parseKeyed(text, hugetlbEvents, m)
}

func ParseMemoryEvents(text []byte, m *v2.MemoryEvents) error {
	return parseKeyed(text, memoryEvents, m)
}

func ParseMemoryStatV1(text []byte, m *v1.MemoryStat) error { return parseKeyed(text, memoryStatV1, m) }

func ParseMemoryStatV2(text []byte, m *v2.MemoryStat) error { return parseKeyed(text, memoryStatV2, m) }

func ParseOOMControl(text []byte, m *v1.MemoryOomControl) error {
	return parseKeyed(text, oomControl, m)
}

// ParseRDMA is parseRDMA with the entries of v2.
func ParseRDMA(text []byte) (int, error) {
	entries, err := parseRDMAV2(text)
	return len(entries), err
}
