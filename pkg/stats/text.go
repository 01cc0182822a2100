// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
)

// number returns what the kernel wrote as a decimal number, or unlimited for the word max. A counter that the kernel sums
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

// field is a key of a file of "key value" lines, and the number of a message that its value is added to. Keys that are
// parts of one number name the same.
type field[M any] struct {
	key string
	of  func(M) *uint64
}

// parseKeyed adds the values of a flat keyed file (cgroup-v2.rst, "Format") to the numbers of m. Keys that are not among
// fields are passed over: each kernel has some more.
func parseKeyed[M any](text []byte, fields []field[M], m M) error {
	next := 0 // fields are listed in the kernel's order, so the key is mostly the one after the last
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		for i := range fields {
			at := (next + i) % len(fields)
			if fields[at].key != string(key) {
				continue
			}
			n, err := number(value, 0)
			if err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			*fields[at].of(m) += n
			next = at + 1
			break
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
