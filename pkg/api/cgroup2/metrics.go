// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup2 has io.containerd.cgroups.v2.Metrics as plain structs, as package api has the others. The names are those of
// github.com/containerd/cgroups/v3/cgroup2/stats. Statistics of networks are left out: this shim reads files of cgroups.
package cgroup2

type Metrics struct {
	Pids         *PidsStat      `protobuf:"bytes,1,opt,name=pids,proto3"`
	CPU          *CPUStat       `protobuf:"bytes,2,opt,name=cpu,proto3"`
	Memory       *MemoryStat    `protobuf:"bytes,4,opt,name=memory,proto3"`
	Rdma         *RdmaStat      `protobuf:"bytes,5,opt,name=rdma,proto3"`
	Io           *IOStat        `protobuf:"bytes,6,opt,name=io,proto3"`
	Hugetlb      []*HugeTlbStat `protobuf:"bytes,7,rep,name=hugetlb,proto3"`
	MemoryEvents *MemoryEvents  `protobuf:"bytes,8,opt,name=memory_events,proto3"`
}

// MessageName is the name in the type URL.
func (*Metrics) MessageName() string { return "io.containerd.cgroups.v2.Metrics" }

type PidsStat struct {
	Current uint64 `protobuf:"varint,1,opt,name=current,proto3"`
	Limit   uint64 `protobuf:"varint,2,opt,name=limit,proto3"`
}

type CPUStat struct {
	UsageUsec     uint64    `protobuf:"varint,1,opt,name=usage_usec,proto3"`
	UserUsec      uint64    `protobuf:"varint,2,opt,name=user_usec,proto3"`
	SystemUsec    uint64    `protobuf:"varint,3,opt,name=system_usec,proto3"`
	NrPeriods     uint64    `protobuf:"varint,4,opt,name=nr_periods,proto3"`
	NrThrottled   uint64    `protobuf:"varint,5,opt,name=nr_throttled,proto3"`
	ThrottledUsec uint64    `protobuf:"varint,6,opt,name=throttled_usec,proto3"`
	PSI           *PSIStats `protobuf:"bytes,7,opt,name=psi,proto3"`
	NrBursts      uint64    `protobuf:"varint,8,opt,name=nr_bursts,proto3"`
	BurstUsec     uint64    `protobuf:"varint,9,opt,name=burst_usec,proto3"`
}

type MemoryStat struct {
	Anon                  uint64    `protobuf:"varint,1,opt,name=anon,proto3"`
	File                  uint64    `protobuf:"varint,2,opt,name=file,proto3"`
	KernelStack           uint64    `protobuf:"varint,3,opt,name=kernel_stack,proto3"`
	Slab                  uint64    `protobuf:"varint,4,opt,name=slab,proto3"`
	Sock                  uint64    `protobuf:"varint,5,opt,name=sock,proto3"`
	Shmem                 uint64    `protobuf:"varint,6,opt,name=shmem,proto3"`
	FileMapped            uint64    `protobuf:"varint,7,opt,name=file_mapped,proto3"`
	FileDirty             uint64    `protobuf:"varint,8,opt,name=file_dirty,proto3"`
	FileWriteback         uint64    `protobuf:"varint,9,opt,name=file_writeback,proto3"`
	AnonThp               uint64    `protobuf:"varint,10,opt,name=anon_thp,proto3"`
	InactiveAnon          uint64    `protobuf:"varint,11,opt,name=inactive_anon,proto3"`
	ActiveAnon            uint64    `protobuf:"varint,12,opt,name=active_anon,proto3"`
	InactiveFile          uint64    `protobuf:"varint,13,opt,name=inactive_file,proto3"`
	ActiveFile            uint64    `protobuf:"varint,14,opt,name=active_file,proto3"`
	Unevictable           uint64    `protobuf:"varint,15,opt,name=unevictable,proto3"`
	SlabReclaimable       uint64    `protobuf:"varint,16,opt,name=slab_reclaimable,proto3"`
	SlabUnreclaimable     uint64    `protobuf:"varint,17,opt,name=slab_unreclaimable,proto3"`
	Pgfault               uint64    `protobuf:"varint,18,opt,name=pgfault,proto3"`
	Pgmajfault            uint64    `protobuf:"varint,19,opt,name=pgmajfault,proto3"`
	WorkingsetRefault     uint64    `protobuf:"varint,20,opt,name=workingset_refault,proto3"`
	WorkingsetActivate    uint64    `protobuf:"varint,21,opt,name=workingset_activate,proto3"`
	WorkingsetNodereclaim uint64    `protobuf:"varint,22,opt,name=workingset_nodereclaim,proto3"`
	Pgrefill              uint64    `protobuf:"varint,23,opt,name=pgrefill,proto3"`
	Pgscan                uint64    `protobuf:"varint,24,opt,name=pgscan,proto3"`
	Pgsteal               uint64    `protobuf:"varint,25,opt,name=pgsteal,proto3"`
	Pgactivate            uint64    `protobuf:"varint,26,opt,name=pgactivate,proto3"`
	Pgdeactivate          uint64    `protobuf:"varint,27,opt,name=pgdeactivate,proto3"`
	Pglazyfree            uint64    `protobuf:"varint,28,opt,name=pglazyfree,proto3"`
	Pglazyfreed           uint64    `protobuf:"varint,29,opt,name=pglazyfreed,proto3"`
	ThpFaultAlloc         uint64    `protobuf:"varint,30,opt,name=thp_fault_alloc,proto3"`
	ThpCollapseAlloc      uint64    `protobuf:"varint,31,opt,name=thp_collapse_alloc,proto3"`
	Usage                 uint64    `protobuf:"varint,32,opt,name=usage,proto3"`
	UsageLimit            uint64    `protobuf:"varint,33,opt,name=usage_limit,proto3"`
	SwapUsage             uint64    `protobuf:"varint,34,opt,name=swap_usage,proto3"`
	SwapLimit             uint64    `protobuf:"varint,35,opt,name=swap_limit,proto3"`
	MaxUsage              uint64    `protobuf:"varint,36,opt,name=max_usage,proto3"`
	SwapMaxUsage          uint64    `protobuf:"varint,37,opt,name=swap_max_usage,proto3"`
	PSI                   *PSIStats `protobuf:"bytes,38,opt,name=psi,proto3"`
}

type RdmaStat struct {
	Current []*RdmaEntry `protobuf:"bytes,1,rep,name=current,proto3"`
	Limit   []*RdmaEntry `protobuf:"bytes,2,rep,name=limit,proto3"`
}

type IOStat struct {
	Usage []*IOEntry `protobuf:"bytes,1,rep,name=usage,proto3"`
	PSI   *PSIStats  `protobuf:"bytes,2,opt,name=psi,proto3"`
}

type HugeTlbStat struct {
	Current  uint64 `protobuf:"varint,1,opt,name=current,proto3"`
	Max      uint64 `protobuf:"varint,2,opt,name=max,proto3"`
	Pagesize string `protobuf:"bytes,3,opt,name=pagesize,proto3"`
	Failcnt  uint64 `protobuf:"varint,4,opt,name=failcnt,proto3"`
}

type MemoryEvents struct {
	Low          uint64 `protobuf:"varint,1,opt,name=low,proto3"`
	High         uint64 `protobuf:"varint,2,opt,name=high,proto3"`
	Max          uint64 `protobuf:"varint,3,opt,name=max,proto3"`
	Oom          uint64 `protobuf:"varint,4,opt,name=oom,proto3"`
	OomKill      uint64 `protobuf:"varint,5,opt,name=oom_kill,proto3"`
	OomGroupKill uint64 `protobuf:"varint,6,opt,name=oom_group_kill,proto3"`
}

type PSIStats struct {
	Some *PSIData `protobuf:"bytes,1,opt,name=some,proto3"`
	Full *PSIData `protobuf:"bytes,2,opt,name=full,proto3"`
}

type RdmaEntry struct {
	Device     string `protobuf:"bytes,1,opt,name=device,proto3"`
	HcaHandles uint32 `protobuf:"varint,2,opt,name=hca_handles,proto3"`
	HcaObjects uint32 `protobuf:"varint,3,opt,name=hca_objects,proto3"`
}

type IOEntry struct {
	Major  uint64 `protobuf:"varint,1,opt,name=major,proto3"`
	Minor  uint64 `protobuf:"varint,2,opt,name=minor,proto3"`
	Rbytes uint64 `protobuf:"varint,3,opt,name=rbytes,proto3"`
	Wbytes uint64 `protobuf:"varint,4,opt,name=wbytes,proto3"`
	Rios   uint64 `protobuf:"varint,5,opt,name=rios,proto3"`
	Wios   uint64 `protobuf:"varint,6,opt,name=wios,proto3"`
}

type PSIData struct {
	Avg10  float64 `protobuf:"fixed64,1,opt,name=avg10,proto3"`
	Avg60  float64 `protobuf:"fixed64,2,opt,name=avg60,proto3"`
	Avg300 float64 `protobuf:"fixed64,3,opt,name=avg300,proto3"`
	Total  uint64  `protobuf:"varint,4,opt,name=total,proto3"`
}
