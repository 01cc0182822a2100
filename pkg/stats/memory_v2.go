// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"

	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// memoryV2 lists the files of the memory controller. memory.stat comes first: without it there are no others. The root
// has memory.stat alone.
func memoryV2() []source[*v2.Metrics] {
	memory := func(m *v2.Metrics) *v2.MemoryStat { return ensure(&m.Memory) }
	return []source[*v2.Metrics]{
		keyed("memory.stat", memoryStatV2, memory),
		single("memory.current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).Usage }),
		single("memory.max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).UsageLimit }),
		single("memory.peak", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).MaxUsage }),
		single("memory.swap.current", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).SwapUsage }),
		single("memory.swap.max", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).SwapLimit }),
		single("memory.swap.peak", math.MaxUint64, func(m *v2.Metrics) *uint64 { return &memory(m).SwapMaxUsage }),
		keyed("memory.events", memoryEvents, func(m *v2.Metrics) *v2.MemoryEvents { return ensure(&m.MemoryEvents) }),
		pressure("memory.pressure", func(m *v2.Metrics) **v2.PSIStats {
			if m.Memory == nil {
				return nil // the file exists without the controller; the message would say that no memory is used
			}
			return &m.Memory.PSI
		}),
	}
}

// memoryStatV2 has what the message names. Since Linux 5.9 the kernel counts refaults of anonymous memory and of files
// separately; the message has the sum, which older kernels write.
var memoryStatV2 = []field[*v2.MemoryStat]{
	{"anon", func(m *v2.MemoryStat) *uint64 { return &m.Anon }},
	{"file", func(m *v2.MemoryStat) *uint64 { return &m.File }},
	{"kernel_stack", func(m *v2.MemoryStat) *uint64 { return &m.KernelStack }},
	{"sock", func(m *v2.MemoryStat) *uint64 { return &m.Sock }},
	{"shmem", func(m *v2.MemoryStat) *uint64 { return &m.Shmem }},
	{"file_mapped", func(m *v2.MemoryStat) *uint64 { return &m.FileMapped }},
	{"file_dirty", func(m *v2.MemoryStat) *uint64 { return &m.FileDirty }},
	{"file_writeback", func(m *v2.MemoryStat) *uint64 { return &m.FileWriteback }},
	{"anon_thp", func(m *v2.MemoryStat) *uint64 { return &m.AnonThp }},
	{"inactive_anon", func(m *v2.MemoryStat) *uint64 { return &m.InactiveAnon }},
	{"active_anon", func(m *v2.MemoryStat) *uint64 { return &m.ActiveAnon }},
	{"inactive_file", func(m *v2.MemoryStat) *uint64 { return &m.InactiveFile }},
	{"active_file", func(m *v2.MemoryStat) *uint64 { return &m.ActiveFile }},
	{"unevictable", func(m *v2.MemoryStat) *uint64 { return &m.Unevictable }},
	{"slab_reclaimable", func(m *v2.MemoryStat) *uint64 { return &m.SlabReclaimable }},
	{"slab_unreclaimable", func(m *v2.MemoryStat) *uint64 { return &m.SlabUnreclaimable }},
	{"slab", func(m *v2.MemoryStat) *uint64 { return &m.Slab }},
	{"workingset_refault", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetRefault }},
	{"workingset_refault_anon", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetRefault }},
	{"workingset_refault_file", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetRefault }},
	{"workingset_activate", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetActivate }},
	{"workingset_activate_anon", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetActivate }},
	{"workingset_activate_file", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetActivate }},
	{"workingset_nodereclaim", func(m *v2.MemoryStat) *uint64 { return &m.WorkingsetNodereclaim }},
	{"pgscan", func(m *v2.MemoryStat) *uint64 { return &m.Pgscan }},
	{"pgsteal", func(m *v2.MemoryStat) *uint64 { return &m.Pgsteal }},
	{"pgfault", func(m *v2.MemoryStat) *uint64 { return &m.Pgfault }},
	{"pgmajfault", func(m *v2.MemoryStat) *uint64 { return &m.Pgmajfault }},
	{"pgrefill", func(m *v2.MemoryStat) *uint64 { return &m.Pgrefill }},
	{"pgactivate", func(m *v2.MemoryStat) *uint64 { return &m.Pgactivate }},
	{"pgdeactivate", func(m *v2.MemoryStat) *uint64 { return &m.Pgdeactivate }},
	{"pglazyfree", func(m *v2.MemoryStat) *uint64 { return &m.Pglazyfree }},
	{"pglazyfreed", func(m *v2.MemoryStat) *uint64 { return &m.Pglazyfreed }},
	{"thp_fault_alloc", func(m *v2.MemoryStat) *uint64 { return &m.ThpFaultAlloc }},
	{"thp_collapse_alloc", func(m *v2.MemoryStat) *uint64 { return &m.ThpCollapseAlloc }},
}

var memoryEvents = []field[*v2.MemoryEvents]{
	{"low", func(m *v2.MemoryEvents) *uint64 { return &m.Low }},
	{"high", func(m *v2.MemoryEvents) *uint64 { return &m.High }},
	{"max", func(m *v2.MemoryEvents) *uint64 { return &m.Max }},
	{"oom", func(m *v2.MemoryEvents) *uint64 { return &m.Oom }},
	{"oom_kill", func(m *v2.MemoryEvents) *uint64 { return &m.OomKill }},
	{"oom_group_kill", func(m *v2.MemoryEvents) *uint64 { return &m.OomGroupKill }},
}
