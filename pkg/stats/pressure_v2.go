// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// parsePressure reads cpu.pressure, memory.pressure or io.pressure (accounting/psi.rst):
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
//
// cpu.pressure has no line "full" before Linux 5.13.
func parsePressure(text []byte) (*v2.PSIStats, error) {
	p := &v2.PSIStats{}
	for line := range bytes.Lines(text) {
		kind, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		var data **v2.PSIData
		switch string(kind) {
		case "some":
			data = &p.Some
		case "full":
			data = &p.Full
		default:
			continue
		}
		*data = &v2.PSIData{}
		if err := parsePressureLine(rest, *data); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
	}
	return p, nil
}

func parsePressureLine(line []byte, data *v2.PSIData) error {
	for word := range bytes.FieldsSeq(line) {
		key, value, _ := bytes.Cut(word, []byte("="))
		var share *float64
		var err error
		switch string(key) {
		case "avg10":
			share = &data.Avg10
		case "avg60":
			share = &data.Avg60
		case "avg300":
			share = &data.Avg300
		case "total":
			data.Total, err = number(value, 0)
		}
		if share != nil {
			*share, err = percentage(value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// percentage returns a share of time, which the kernel writes with two decimals.
func percentage(text []byte) (float64, error) {
	const most = 100
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(n >= 0 && n <= most) {
		return 0, fmt.Errorf("%q: must be a number from 0 to %d: %w", text, most, errdefs.ErrInternal)
	}
	return n, nil
}
