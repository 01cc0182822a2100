// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v1 "github.com/containerd/cgroups/v3/cgroup1/stats"

// hugetlbV1 lists the files of each size of huge pages.
func hugetlbV1(dir string) []source[*v1.Metrics] {
	var sources []source[*v1.Metrics]
	for _, size := range hugePages(dir, "usage_in_bytes") {
		entry := func(m *v1.Metrics) *v1.HugetlbStat {
			for _, h := range m.Hugetlb {
				if h.Pagesize == size {
					return h
				}
			}
			h := &v1.HugetlbStat{Pagesize: size}
			m.Hugetlb = append(m.Hugetlb, h)
			return h
		}
		prefix := "hugetlb." + size
		sources = append(sources,
			single(prefix+".usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Usage }),
			single(prefix+".max_usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Max }),
			single(prefix+".failcnt", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Failcnt }),
		)
	}
	return sources
}
