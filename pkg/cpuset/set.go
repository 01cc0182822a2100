// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Limit is above the number of any CPU (NR_CPUS_RANGE_END in arch/x86/Kconfig) or memory node.
const (
	bits  = 13
	Limit = 1 << bits
)

// Set is a set of CPUs or memory nodes. It does not change; the zero value is the empty set; == compares.
type Set struct {
	list string // as the kernel prints it
}

type members [Limit]bool

// Parse reads a list as the kernel prints it, such as "0-2,8", or with spaces around commas. An error is
// errdefs.ErrInvalidArgument.
func Parse(list string) (Set, error) {
	m, ok := read(list)
	if !ok {
		return Set{}, fmt.Errorf("cpuset %.64q: must be numbers or ranges of them from 0 to %d, such as 0-3,8: %w",
			list, Limit-1, errdefs.ErrInvalidArgument)
	}
	return m.set(), nil
}

func read(list string) (m members, ok bool) {
	if strings.TrimSpace(list) == "" {
		return m, true
	}
	for region := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(region), "-")
		if !ranged {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, bits)
		last, lastErr := strconv.ParseUint(to, 10, bits)
		if err != nil || lastErr != nil || first > last {
			return m, false
		}
		for n := first; n <= last; n++ {
			m[n] = true
		}
	}
	return m, true
}

func (m *members) set() Set {
	var list []byte
	for n := 0; n < Limit; n++ {
		if !m[n] {
			continue
		}
		first := n
		for n+1 < Limit && m[n+1] {
			n++
		}
		if len(list) > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendInt(list, int64(first), 10)
		if n > first {
			list = strconv.AppendInt(append(list, '-'), int64(n), 10)
		}
	}
	return Set{string(list)}
}

// String returns the list as the kernel prints it, such as "0-2,8", and "" for the empty set. Parse reads it.
func (s Set) String() string { return s.list }

// Intersect returns what is in s and in t.
func (s Set) Intersect(t Set) Set {
	m, _ := read(s.list)
	other, _ := read(t.list)
	for n := range m {
		m[n] = m[n] && other[n]
	}
	return m.set()
}

// Empty reports whether there is nothing in s.
func (s Set) Empty() bool { return s.list == "" }
