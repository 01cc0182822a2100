// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

// What the tests of the parsers see.
var (
	Number            = number
	ParseBlkio        = parseBlkio
	ParseCPUAcctStat  = parseCPUAcctStat
	ParseCPUStatV1    = parseCPUStatV1
	ParseCPUStatV2    = parseCPUStatV2
	ParseHugetlbEvent = parseHugetlbEvents
	ParseIOStat       = parseIOStat
	ParseMemoryEvents = parseMemoryEvents
	ParseMemoryStatV1 = parseMemoryStatV1
	ParseMemoryStatV2 = parseMemoryStatV2
	ParseOOMControl   = parseOOMControl
	ParsePerCPU       = parsePerCPU
	ParsePressure     = parsePressure
)

// ParseRDMA is parseRDMA with the entries of v2.
func ParseRDMA(text []byte) (int, error) {
	entries, err := parseRDMA(text, rdmaEntryV2)
	return len(entries), err
}

// Shared is what lets concurrent callers have one answer.
type Shared = shared[string]

// Do is do.
func (s *shared[T]) Do(f func() (T, error)) (T, error) { return s.do(f) }
