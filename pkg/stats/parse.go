// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
)

// number parses a decimal number of the kernel's, or returns unlimited for the word max. A counter that the kernel sums
// over CPUs can be below zero for a moment, and is 0 then.
func number(text []byte, unlimited uint64) (uint64, error) {
	text = bytes.TrimSpace(text)
	if string(text) == "max" {
		return unlimited, nil
	}
	digits, negative := bytes.CutPrefix(text, []byte("-"))
	n, err := strconv.ParseUint(string(digits), 10, 64)
	switch {
	case negative && (err == nil || errors.Is(err, strconv.ErrRange)):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("%q: must be a number from 0 to 2^64-1: %w", text, errdefs.ErrInternal)
	}
	return n, nil
}

// fields returns which fields of message M are numbers, by their names in small letters. Those are the kernel's names
// without underscores, apart from some keys of which fieldsOf is told. Several keys may be parts of one number.
type fields[M any] func() map[string]int

// fieldsOf returns the fields of M, found when they are first needed. others are pairs of a key and a field's name.
func fieldsOf[M any](others ...string) fields[M] {
	return sync.OnceValue(func() map[string]int {
		message := reflect.TypeFor[M]()
		index := map[string]int{}
		for i := range message.NumField() {
			if f := message.Field(i); f.IsExported() && f.Type.Kind() == reflect.Uint64 {
				index[strings.ToLower(f.Name)] = i
			}
		}
		for pair := range slices.Chunk(others, 2) {
			index[strings.ReplaceAll(pair[0], "_", "")] = index[strings.ToLower(pair[1])]
		}
		return index
	})
}

// add adds value to the number of key, if m has it: each kernel has some more.
func (f fields[M]) add(key, value []byte, m *M) error {
	name := make([]byte, 0, 64) // stays on the stack
	for _, c := range key {
		if c != '_' {
			name = append(name, c)
		}
	}
	i, ok := f()[string(name)]
	if !ok {
		return nil
	}
	n, err := number(value, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	field := reflect.ValueOf(m).Elem().Field(i)
	field.SetUint(field.Uint() + n)
	return nil
}

// parseKeyed adds the values of a flat keyed file (cgroup-v2.rst, "Format") to the numbers of m.
func parseKeyed[M any](text []byte, f fields[M], m *M) error {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if err := f.add(key, value, m); err != nil {
			return err
		}
	}
	return nil
}

// parseDevice returns the numbers of a block device from its MAJOR:MINOR. ok is false for any other text.
func parseDevice(text []byte) (major, minor uint64, ok bool) {
	before, after, found := bytes.Cut(text, []byte(":"))
	major, err := strconv.ParseUint(string(before), 10, 32)
	minor, err2 := strconv.ParseUint(string(after), 10, 32)
	return major, minor, found && err == nil && err2 == nil
}

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

// rdmaLine is a line of rdma.current or rdma.max, which have one form on v1 and v2 (cgroup-v1/rdma.rst):
//
//	mlx4_0 hca_handle=2 hca_object=max
type rdmaLine struct {
	device           string
	handles, objects uint32
}

// parseRDMA returns what entry makes of each line. Unlimited is math.MaxUint32.
func parseRDMA[E any](text []byte, entry func(rdmaLine) E) ([]E, error) {
	var entries []E
	for line := range bytes.Lines(text) {
		device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if len(device) == 0 {
			continue
		}
		l := rdmaLine{device: string(device)}
		for word := range bytes.FieldsSeq(rest) {
			if err := l.parse(word); err != nil {
				return nil, fmt.Errorf("%s: %w", device, err)
			}
		}
		entries = append(entries, entry(l))
	}
	return entries, nil
}

func (l *rdmaLine) parse(word []byte) error {
	key, value, _ := bytes.Cut(word, []byte("="))
	var to *uint32
	switch string(key) {
	case "hca_handle":
		to = &l.handles
	case "hca_object":
		to = &l.objects
	default:
		return nil
	}
	n, err := number(value, math.MaxUint32)
	if err == nil && n > math.MaxUint32 {
		err = fmt.Errorf("%d: must be at most %d: %w", n, uint32(math.MaxUint32), errdefs.ErrInternal)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	*to = uint32(n)
	return nil
}
