// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// hugetlbV2 lists the files of one size of huge pages.
func hugetlbV2(size string) []source[*v2.Metrics] {
	entry := func(m *v2.Metrics) *v2.HugeTlbStat {
		for _, h := range m.Hugetlb {
			if h.Pagesize == size {
				return h
			}
		}
		h := &v2.HugeTlbStat{Pagesize: size}
		m.Hugetlb = append(m.Hugetlb, h)
		return h
	}
	prefix := "hugetlb." + size
	return []source[*v2.Metrics]{
		single(prefix+".current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &entry(m).Current }),
		single(prefix+".max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &entry(m).Max }),
		{name: prefix + ".events", parse: func(text []byte, m *v2.Metrics) error {
			return parseHugetlbEvents(text, entry(m))
		}},
	}
}

func parseHugetlbEvents(text []byte, m *v2.HugeTlbStat) error {
	return parseKeyed(text, hugetlbEvents, m)
}

var hugetlbEvents = []field[*v2.HugeTlbStat]{
	{"max", func(m *v2.HugeTlbStat) *uint64 { return &m.Failcnt }},
}
