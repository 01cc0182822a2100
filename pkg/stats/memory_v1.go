// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import v1 "github.com/containerd/cgroups/v3/cgroup1/stats"

// memoryV1 lists the files of the memory controller. Consumers in containerd expect the entries for swap and kernel
// memory also where the kernel does not account them (CONFIG_SWAP, cgroup.memory=nokmem). They are zero then.
func memoryV1() []source[*v1.Metrics] {
	memory := func(m *v1.Metrics) *v1.MemoryStat {
		if m.Memory == nil {
			m.Memory = &v1.MemoryStat{
				Usage: &v1.MemoryEntry{}, Swap: &v1.MemoryEntry{}, Kernel: &v1.MemoryEntry{}, KernelTCP: &v1.MemoryEntry{},
			}
		}
		return m.Memory
	}
	sources := []source[*v1.Metrics]{
		keyed("memory.stat", memoryStatV1, memory),
		keyed("memory.oom_control", oomControl,
			func(m *v1.Metrics) *v1.MemoryOomControl { return ensure(&m.MemoryOomControl) }),
	}
	for _, kind := range []struct {
		prefix string
		entry  func(*v1.MemoryStat) *v1.MemoryEntry
	}{
		{"memory", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.Usage }},
		{"memory.memsw", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.Swap }},
		{"memory.kmem", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.Kernel }},
		{"memory.kmem.tcp", func(m *v1.MemoryStat) *v1.MemoryEntry { return m.KernelTCP }},
	} {
		entry := func(m *v1.Metrics) *v1.MemoryEntry { return kind.entry(memory(m)) }
		sources = append(sources,
			single(kind.prefix+".usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Usage }),
			single(kind.prefix+".max_usage_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Max }),
			single(kind.prefix+".failcnt", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Failcnt }),
			single(kind.prefix+".limit_in_bytes", 0, func(m *v1.Metrics) *uint64 { return &entry(m).Limit }),
		)
	}
	return sources
}

var memoryStatV1 = []field[*v1.MemoryStat]{
	{"cache", func(m *v1.MemoryStat) *uint64 { return &m.Cache }},
	{"rss", func(m *v1.MemoryStat) *uint64 { return &m.RSS }},
	{"rss_huge", func(m *v1.MemoryStat) *uint64 { return &m.RSSHuge }},
	{"mapped_file", func(m *v1.MemoryStat) *uint64 { return &m.MappedFile }},
	{"dirty", func(m *v1.MemoryStat) *uint64 { return &m.Dirty }},
	{"writeback", func(m *v1.MemoryStat) *uint64 { return &m.Writeback }},
	{"pgpgin", func(m *v1.MemoryStat) *uint64 { return &m.PgPgIn }},
	{"pgpgout", func(m *v1.MemoryStat) *uint64 { return &m.PgPgOut }},
	{"pgfault", func(m *v1.MemoryStat) *uint64 { return &m.PgFault }},
	{"pgmajfault", func(m *v1.MemoryStat) *uint64 { return &m.PgMajFault }},
	{"inactive_anon", func(m *v1.MemoryStat) *uint64 { return &m.InactiveAnon }},
	{"active_anon", func(m *v1.MemoryStat) *uint64 { return &m.ActiveAnon }},
	{"inactive_file", func(m *v1.MemoryStat) *uint64 { return &m.InactiveFile }},
	{"active_file", func(m *v1.MemoryStat) *uint64 { return &m.ActiveFile }},
	{"unevictable", func(m *v1.MemoryStat) *uint64 { return &m.Unevictable }},
	{"hierarchical_memory_limit", func(m *v1.MemoryStat) *uint64 { return &m.HierarchicalMemoryLimit }},
	{"hierarchical_memsw_limit", func(m *v1.MemoryStat) *uint64 { return &m.HierarchicalSwapLimit }},
	{"total_cache", func(m *v1.MemoryStat) *uint64 { return &m.TotalCache }},
	{"total_rss", func(m *v1.MemoryStat) *uint64 { return &m.TotalRSS }},
	{"total_rss_huge", func(m *v1.MemoryStat) *uint64 { return &m.TotalRSSHuge }},
	{"total_mapped_file", func(m *v1.MemoryStat) *uint64 { return &m.TotalMappedFile }},
	{"total_dirty", func(m *v1.MemoryStat) *uint64 { return &m.TotalDirty }},
	{"total_writeback", func(m *v1.MemoryStat) *uint64 { return &m.TotalWriteback }},
	{"total_pgpgin", func(m *v1.MemoryStat) *uint64 { return &m.TotalPgPgIn }},
	{"total_pgpgout", func(m *v1.MemoryStat) *uint64 { return &m.TotalPgPgOut }},
	{"total_pgfault", func(m *v1.MemoryStat) *uint64 { return &m.TotalPgFault }},
	{"total_pgmajfault", func(m *v1.MemoryStat) *uint64 { return &m.TotalPgMajFault }},
	{"total_inactive_anon", func(m *v1.MemoryStat) *uint64 { return &m.TotalInactiveAnon }},
	{"total_active_anon", func(m *v1.MemoryStat) *uint64 { return &m.TotalActiveAnon }},
	{"total_inactive_file", func(m *v1.MemoryStat) *uint64 { return &m.TotalInactiveFile }},
	{"total_active_file", func(m *v1.MemoryStat) *uint64 { return &m.TotalActiveFile }},
	{"total_unevictable", func(m *v1.MemoryStat) *uint64 { return &m.TotalUnevictable }},
}

var oomControl = []field[*v1.MemoryOomControl]{
	{"oom_kill_disable", func(m *v1.MemoryOomControl) *uint64 { return &m.OomKillDisable }},
	{"under_oom", func(m *v1.MemoryOomControl) *uint64 { return &m.UnderOom }},
	{"oom_kill", func(m *v1.MemoryOomControl) *uint64 { return &m.OomKill }},
}
