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
const Limit = 8192

// Set is a set of CPUs or memory nodes. It does not change; the zero value is the empty set; == compares.
type Set struct {
	list string // as the kernel prints it
}

type members [Limit]bool

// Parse reads a list in the kernel's format (bitmap_parselist), such as "0-2,8" or "0-31:1/4" (the first of each group
// of 4). It refuses the kernel's words "all" and "N". An error is errdefs.ErrInvalidArgument.
func Parse(list string) (Set, error) {
	const most = 100 + 6*Limit // kernel/cgroup/cpuset.c, max_write_len
	if len(list) > most {
		return Set{}, fmt.Errorf("cpuset: a list has %d bytes: can have %d: %w", len(list), most,
			errdefs.ErrInvalidArgument)
	}
	var m members
	separates := func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }
	for region := range strings.FieldsFuncSeq(strings.TrimSpace(list), separates) {
		if !m.add(region) {
			return Set{}, fmt.Errorf("cpuset %.64q: %.64q: must be numbers or ranges of them from 0 to %d, "+
				"such as 0-3,8 or 0-31:1/4: %w", list, region, Limit-1, errdefs.ErrInvalidArgument)
		}
	}
	return m.set(), nil
}

// add adds the region first-last:used/group, and reports whether text is one.
func (m *members) add(text string) bool {
	span, pattern, patterned := strings.Cut(text, ":")
	from, to, ranged := strings.Cut(span, "-")
	if !ranged {
		to = from
	}
	used, group, _ := strings.Cut(pattern, "/")
	if !patterned {
		used, group = "1", "1"
	}
	var numbers [4]uint64
	for i, digits := range []string{from, to, used, group} {
		var err error
		if numbers[i], err = strconv.ParseUint(digits, 10, 32); err != nil {
			return false
		}
	}
	first, last, most, step := numbers[0], numbers[1], numbers[2], numbers[3]
	if patterned && !ranged || first > last || last >= Limit || most > step || step == 0 {
		return false
	}
	for n := first; n <= last; n++ {
		m[n] = m[n] || (n-first)%step < most
	}
	return true
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

func (s Set) members() (m members) {
	for region := range strings.SplitSeq(s.list, ",") {
		m.add(region)
	}
	return m
}

// String returns the list as the kernel prints it, such as "0-2,8", and "" for the empty set. Parse reads it.
func (s Set) String() string { return s.list }

// Intersect returns what is in s and in t.
func (s Set) Intersect(t Set) Set { return s.which(t, true) }

// Difference returns what is in s and not in t.
func (s Set) Difference(t Set) Set { return s.which(t, false) }

func (s Set) which(t Set, isIn bool) Set {
	m, other := s.members(), t.members()
	for n := range m {
		m[n] = m[n] && other[n] == isIn
	}
	return m.set()
}

// Empty reports whether there is nothing in s.
func (s Set) Empty() bool { return s.list == "" }
