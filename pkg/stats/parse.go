// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
)

// otherNames are the fields of keys with another name. Linux 5.9 splits refaults of anonymous memory and of files, of
// which the message has the sum.
var otherNames = map[string]string{
	"nrperiods": "periods", "nrthrottled": "throttledperiods", // v1 cpu.stat
	"system":                 "kernel",                // v1 cpuacct.stat
	"hierarchicalmemswlimit": "hierarchicalswaplimit", // v1 memory.stat
	"workingsetrefaultanon":  "workingsetrefault", "workingsetrefaultfile": "workingsetrefault",
	"workingsetactivateanon": "workingsetactivate", "workingsetactivatefile": "workingsetactivate",
	"max": "failcnt", // v2 hugetlb.SIZE.events
}

// numbers has, by the type of a message, the index of each number by the kernel's key without underscores.
var numbers sync.Map

func numbersOf(message reflect.Type) map[string]int {
	if known, ok := numbers.Load(message); ok {
		return known.(map[string]int)
	}
	index := map[string]int{}
	for i := range message.NumField() {
		switch f := message.Field(i); f.Type.Kind() { //nolint:exhaustive // the others are no numbers of the kernel's
		case reflect.Uint64, reflect.Float64:
			index[strings.ToLower(f.Name)] = i
		}
	}
	for key, name := range otherNames {
		if i, ok := index[name]; ok {
			index[key] = i
		}
	}
	numbers.Store(message, index)
	return index
}

// tick is the unit of cpuacct.stat (cgroup-v1/cpuacct.rst): USER_HZ is 100 wherever Go runs.
const tick = uint64(10 * time.Millisecond)

// parse parses the text of a file into its field. The word max alone becomes unlimited.
func parse(text []byte, field reflect.Value, unlimited uint64) (err error) {
	switch f := field.Addr().Interface().(type) {
	case *uint64:
		*f, err = number(text, unlimited)
	case *[]uint64:
		for word := range bytes.FieldsSeq(text) { // the nanoseconds on each CPU, all in one line
			n, wordErr := number(word, 0)
			*f, err = append(*f, n), errors.Join(err, wordErr)
		}
	case *[]*v1.BlkIOEntry:
		var list []*v1.BlkIOEntry
		if list, err = parseBlkio(text); len(list) > 0 {
			*f = list
		}
	case *[]*v2.IOEntry:
		*f, err = parseIOStat(text)
	case **v2.PSIStats:
		*f, err = parsePressure(text)
	default:
		if field.Kind() == reflect.Pointer {
			if field.IsNil() {
				field.Set(newMessage(field.Type().Elem()))
			}
			field = field.Elem()
		}
		// A flat keyed file (cgroup-v2.rst, "Format").
		err = addPairs(text, "\n", " ", field)
		if usage, ok := reflect.TypeAssert[*v1.CPUUsage](field.Addr()); ok {
			usage.User *= tick
			usage.Kernel *= tick
		}
	}
	return err
}

// number parses a decimal number, or returns unlimited for the word max. A counter that is summed over CPUs can be
// below zero for a moment; it is 0 then.
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

// addPairs adds the values of pairs, such as "a=1 b=2" with between " " and within "=", to the fields of m.
func addPairs(text []byte, between, within string, m reflect.Value) error {
	fields := numbersOf(m.Type())
	for pair := range bytes.SplitSeq(text, []byte(between)) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(pair), []byte(within))
		name := make([]byte, 0, 64) // stays on the stack
		for _, c := range key {
			if c != '_' {
				name = append(name, c)
			}
		}
		if i, ok := fields[string(name)]; ok {
			if err := add(value, m.Field(i)); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return nil
}

// add adds a number to a field, or sets a percentage.
func add(text []byte, field reflect.Value) error {
	if field.Kind() == reflect.Float64 {
		const most = 100
		n, err := strconv.ParseFloat(string(text), 64)
		if err != nil || !(n >= 0 && n <= most) {
			return fmt.Errorf("%q: must be a number from 0 to %d: %w", text, most, errdefs.ErrInternal)
		}
		field.SetFloat(n)
		return nil
	}
	n, err := number(text, 0) // no key has a limit
	if err == nil {
		field.SetUint(field.Uint() + n)
	}
	return err
}

func parseDevice(text []byte) (major, minor uint64, ok bool) {
	before, after, found := bytes.Cut(text, []byte(":"))
	major, err := strconv.ParseUint(string(before), 10, 32)
	minor, err2 := strconv.ParseUint(string(after), 10, 32)
	return major, minor, found && err == nil && err2 == nil
}

// parsePressure reads lines such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=0" (accounting/psi.rst).
func parsePressure(text []byte) (*v2.PSIStats, error) {
	psi := &v2.PSIStats{}
	for line := range bytes.Lines(text) {
		kind, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		data := &v2.PSIData{}
		switch string(kind) {
		case "some":
			psi.Some = data
		case "full":
			psi.Full = data
		default:
			continue
		}
		if err := addPairs(rest, " ", "=", reflect.ValueOf(data).Elem()); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
	}
	return psi, nil
}

// parseBlkio reads lines such as "8:0 Read 12" or "8:0 12". It skips the total over the devices.
func parseBlkio(text []byte) ([]*v1.BlkIOEntry, error) {
	var entries []*v1.BlkIOEntry
	var last []byte // the device of the line before
	var name string
	for line := range bytes.Lines(text) {
		device, rest, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		major, minor, ok := parseDevice(device)
		if !ok {
			continue
		}
		if !bytes.Equal(device, last) {
			last, name = device, deviceName(string(device))
		}
		op, value, both := bytes.Cut(rest, []byte(" "))
		if !both {
			op, value = nil, rest
		}
		n, err := number(value, 0)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", device, op, err)
		}
		entries = append(entries, &v1.BlkIOEntry{Op: string(op), Device: name, Major: major, Minor: minor, Value: n})
	}
	return entries, nil
}

// deviceName returns the path of a block device, or "" if it is gone. sysfs writes "!" for a slash in a name.
func deviceName(device string) string {
	target, err := os.Readlink("/sys/dev/block/" + device)
	if err != nil {
		return ""
	}
	return "/dev/" + strings.ReplaceAll(path.Base(target), "!", "/")
}

// parseIOStat reads lines such as "254:0 rbytes=1 wbytes=2". Linux 5.13 to 5.16 does not end the line of a device
// without numbers, so the numbers are those of the last device before them.
func parseIOStat(text []byte) ([]*v2.IOEntry, error) {
	var entries []*v2.IOEntry
	for line := range bytes.Lines(text) {
		var entry *v2.IOEntry
		for word := range bytes.FieldsSeq(line) {
			if major, minor, ok := parseDevice(word); ok {
				entry = &v2.IOEntry{Major: major, Minor: minor}
			}
		}
		if entry == nil {
			continue
		}
		if err := addPairs(line, " ", "=", reflect.ValueOf(entry).Elem()); err != nil {
			return nil, fmt.Errorf("%d:%d: %w", entry.Major, entry.Minor, err)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
