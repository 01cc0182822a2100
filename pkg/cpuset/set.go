// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cpuset

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Limit is larger than the number of any CPU or memory node: a kernel can be built for at most 8192 CPUs
// (NR_CPUS_RANGE_END in arch/x86/Kconfig; others have fewer) and 1024 nodes. A Set has a bit for each: 1 KiB.
const Limit = 8192

// Set is a set of CPUs or memory nodes. It does not change; the zero value is the empty set; == compares.
type Set struct {
	bits [Limit / 8]byte // number n is bit n%8 of byte n/8
}

// Parse reads a list as the kernel does (bitmap_parselist): numbers and ranges separated by commas or blanks, such as
// "0-2,8", and ranges of which only the first numbers in each group count, such as "0-31:1/4". The kernel's words "all"
// and "N" depend on the machine and are refused. An empty list is the empty set. An error is
// errdefs.ErrInvalidArgument.
func Parse(list string) (Set, error) {
	const most = 100 + 6*Limit // kernel/cgroup/cpuset.c, max_write_len
	if len(list) > most {
		return Set{}, fmt.Errorf("cpuset %s: has %d bytes: can have %d: %w", quote(list), len(list), most,
			errdefs.ErrInvalidArgument)
	}
	var s Set
	separates := func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }
	for region := range strings.FieldsFuncSeq(strings.TrimSpace(list), separates) {
		r, ok := parseRegion(region)
		if !ok {
			return Set{}, fmt.Errorf("cpuset %s: %s: must be numbers or ranges of them from 0 to %d, "+
				"such as 0-3,8 or 0-31:1/4: %w", quote(list), quote(region), Limit-1, errdefs.ErrInvalidArgument)
		}
		for start := r.first; start <= r.last; start += r.group {
			for n := start; n < start+r.used && n <= r.last; n++ {
				s.bits[n/8] |= 1 << (n % 8)
			}
		}
	}
	return s, nil
}

// region is first-last:used/group: the first used numbers of each group.
type region struct{ first, last, used, group uint64 }

func parseRegion(text string) (region, bool) {
	span, pattern, patterned := strings.Cut(text, ":")
	from, to, ranged := strings.Cut(span, "-")
	if !ranged {
		to = from
	}
	r := region{used: 1, group: 1}
	ok := number(from, &r.first) && number(to, &r.last)
	if patterned {
		used, group, _ := strings.Cut(pattern, "/")
		ok = ok && ranged && number(used, &r.used) && number(group, &r.group)
	}
	return r, ok && r.first <= r.last && r.last < Limit && r.used <= r.group && r.group > 0
}

// number reads what the kernel takes for a number here: decimal digits, no sign, at most 32 bits.
func number(text string, n *uint64) bool {
	v, err := strconv.ParseUint(text, 10, 32)
	*n = v
	return err == nil
}

// quote keeps a message short, whatever the text.
func quote(text string) string {
	const most = 64
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}

// String returns the list as the kernel prints it, such as "0-2,8", and "" for the empty set. Parse reads it.
func (s Set) String() string {
	var list []byte
	for n := 0; n < Limit; n++ {
		if !s.has(n) {
			continue
		}
		first := n
		for n+1 < Limit && s.has(n+1) {
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
	return string(list)
}

func (s Set) has(n int) bool { return s.bits[n/8]>>(n%8)&1 == 1 }

// Intersect returns what is in s and in t.
func (s Set) Intersect(t Set) Set {
	for i := range s.bits {
		s.bits[i] &= t.bits[i]
	}
	return s
}

// Difference returns what is in s and not in t.
func (s Set) Difference(t Set) Set {
	for i := range s.bits {
		s.bits[i] &^= t.bits[i]
	}
	return s
}

// Subset reports whether t has all of s.
func (s Set) Subset(t Set) bool { return s.Difference(t).Empty() }

// Empty reports whether there is nothing in s.
func (s Set) Empty() bool { return s == Set{} }
