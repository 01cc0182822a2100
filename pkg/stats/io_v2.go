// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// ioV2 lists the files about block devices. io.pressure is there without the io controller.
func ioV2() []source[*v2.Metrics] {
	return []source[*v2.Metrics]{
		{name: "io.stat", parse: func(text []byte, m *v2.Metrics) (err error) {
			m.Io = &v2.IOStat{}
			m.Io.Usage, err = parseIOStat(text)
			return err
		}},
		{name: "io.pressure", parse: func(text []byte, m *v2.Metrics) (err error) {
			if m.Io == nil {
				m.Io = &v2.IOStat{}
			}
			m.Io.PSI, err = parsePressure(text)
			return err
		}},
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
			if err := parseIONumber(key, value, entry); err != nil {
				return nil, fmt.Errorf("%d:%d: %w", entry.Major, entry.Minor, err)
			}
		}
		if entry != nil {
			entries = append(entries, entry)
		}
	}
	return entries, nil
}

func parseIONumber(key, value []byte, entry *v2.IOEntry) (err error) {
	var to *uint64
	switch string(key) {
	case "rbytes":
		to = &entry.Rbytes
	case "wbytes":
		to = &entry.Wbytes
	case "rios":
		to = &entry.Rios
	case "wios":
		to = &entry.Wios
	default:
		return nil
	}
	if *to, err = number(value, 0); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
