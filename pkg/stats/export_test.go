// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"reflect"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// What the tests of the parsers see.
var (
	Number        = number
	ParseBlkio    = parseBlkio
	ParseIOStat   = parseIOStat
	ParsePerCPU   = parsePerCPU
	ParsePressure = parsePressure
)

// ParseKeyed parses a flat keyed file into the message m.
func ParseKeyed(text []byte, m any) error { return parse(text, reflect.ValueOf(m).Elem(), 0) }

// ParseRDMA is parseRDMA with the entries of v2.
func ParseRDMA(text []byte) (int, error) {
	var entries []*v2.RdmaEntry
	err := parseRDMA(text, reflect.ValueOf(&entries).Elem())
	return len(entries), err
}
