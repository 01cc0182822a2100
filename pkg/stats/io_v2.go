// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

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
			if _, err := add(ioStat, 0, key, value, entry); err != nil {
				return nil, fmt.Errorf("%d:%d: %w", entry.Major, entry.Minor, err)
			}
		}
		if entry != nil {
			entries = append(entries, entry)
		}
	}
	return entries, nil
}

var ioStat = []field[*v2.IOEntry]{
	{"rbytes", func(m *v2.IOEntry) *uint64 { return &m.Rbytes }},
	{"wbytes", func(m *v2.IOEntry) *uint64 { return &m.Wbytes }},
	{"rios", func(m *v2.IOEntry) *uint64 { return &m.Rios }},
	{"wios", func(m *v2.IOEntry) *uint64 { return &m.Wios }},
}
