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
		message, numeric := reflect.TypeFor[M](), []reflect.Kind{reflect.Uint64, reflect.Uint32, reflect.Float64}
		index := map[string]int{}
		for i := range message.NumField() {
			if f := message.Field(i); slices.Contains(numeric, f.Type.Kind()) {
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
	field := reflect.ValueOf(m).Elem().Field(i)
	var err error
	if field.Kind() == reflect.Float64 {
		err = setPercentage(field, value)
	} else {
		err = addNumber(field, value)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func addNumber(field reflect.Value, text []byte) error {
	var unlimited uint64 // for keys that have no limit
	if field.Kind() == reflect.Uint32 {
		unlimited = math.MaxUint32
	}
	n, err := number(text, unlimited)
	if err != nil {
		return err
	}
	if n += field.Uint(); field.OverflowUint(n) {
		return fmt.Errorf("%d: must be at most %d: %w", n, uint32(math.MaxUint32), errdefs.ErrInternal)
	}
	field.SetUint(n)
	return nil
}

// setPercentage sets a share of time, which the kernel writes with two decimals.
func setPercentage(field reflect.Value, text []byte) error {
	const most = 100
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(n >= 0 && n <= most) {
		return fmt.Errorf("%q: must be a number from 0 to %d: %w", text, most, errdefs.ErrInternal)
	}
	field.SetFloat(n)
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

// parsePairs adds the values of words such as key=1 to the numbers of m.
func parsePairs[M any](text []byte, f fields[M], m *M) error {
	for word := range bytes.FieldsSeq(text) {
		key, value, _ := bytes.Cut(word, []byte("="))
		if err := f.add(key, value, m); err != nil {
			return err
		}
	}
	return nil
}

var psiData = fieldsOf[v2.PSIData]()

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
		data := &v2.PSIData{}
		switch string(kind) {
		case "some":
			p.Some = data
		case "full":
			p.Full = data
		default:
			continue
		}
		if err := parsePairs(rest, psiData, data); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
	}
	return p, nil
}

// parseRDMA reads rdma.current or rdma.max, which have one form on v1 and v2 (cgroup-v1/rdma.rst):
//
//	mlx4_0 hca_handle=2 hca_object=max
//
// Unlimited is math.MaxUint32. device is the name in an entry.
func parseRDMA[E any](text []byte, f fields[E], device func(*E) *string) ([]*E, error) {
	var entries []*E
	for line := range bytes.Lines(text) {
		name, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if len(name) == 0 {
			continue
		}
		entry := new(E)
		*device(entry) = string(name)
		if err := parsePairs(rest, f, entry); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
