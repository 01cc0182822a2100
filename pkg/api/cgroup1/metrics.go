// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup1 has io.containerd.cgroups.v1.Metrics as plain structs, as package api has the others. The names are those of
// github.com/containerd/cgroups/v3/cgroup1/stats. Statistics of networks and of tasks by state are left out: this shim reads files of cgroups.
package cgroup1

type Metrics struct {
	Hugetlb          []*HugetlbStat    `protobuf:"bytes,1,rep,name=hugetlb,proto3"`
	Pids             *PidsStat         `protobuf:"bytes,2,opt,name=pids,proto3"`
	CPU              *CPUStat          `protobuf:"bytes,3,opt,name=cpu,proto3"`
	Memory           *MemoryStat       `protobuf:"bytes,4,opt,name=memory,proto3"`
	Blkio            *BlkIOStat        `protobuf:"bytes,5,opt,name=blkio,proto3"`
	Rdma             *RdmaStat         `protobuf:"bytes,6,opt,name=rdma,proto3"`
	MemoryOomControl *MemoryOomControl `protobuf:"bytes,9,opt,name=memory_oom_control,proto3"`
}

// MessageName is the name in the type URL.
func (*Metrics) MessageName() string { return "io.containerd.cgroups.v1.Metrics" }

type HugetlbStat struct {
	Usage    uint64 `protobuf:"varint,1,opt,name=usage,proto3"`
	Max      uint64 `protobuf:"varint,2,opt,name=max,proto3"`
	Failcnt  uint64 `protobuf:"varint,3,opt,name=failcnt,proto3"`
	Pagesize string `protobuf:"bytes,4,opt,name=pagesize,proto3"`
}

type PidsStat struct {
	Current uint64 `protobuf:"varint,1,opt,name=current,proto3"`
	Limit   uint64 `protobuf:"varint,2,opt,name=limit,proto3"`
}

type CPUStat struct {
	Usage      *CPUUsage `protobuf:"bytes,1,opt,name=usage,proto3"`
	Throttling *Throttle `protobuf:"bytes,2,opt,name=throttling,proto3"`
}

type MemoryStat struct {
	Cache                   uint64       `protobuf:"varint,1,opt,name=cache,proto3"`
	RSS                     uint64       `protobuf:"varint,2,opt,name=rss,proto3"`
	RSSHuge                 uint64       `protobuf:"varint,3,opt,name=rss_huge,proto3"`
	MappedFile              uint64       `protobuf:"varint,4,opt,name=mapped_file,proto3"`
	Dirty                   uint64       `protobuf:"varint,5,opt,name=dirty,proto3"`
	Writeback               uint64       `protobuf:"varint,6,opt,name=writeback,proto3"`
	PgPgIn                  uint64       `protobuf:"varint,7,opt,name=pg_pg_in,proto3"`
	PgPgOut                 uint64       `protobuf:"varint,8,opt,name=pg_pg_out,proto3"`
	PgFault                 uint64       `protobuf:"varint,9,opt,name=pg_fault,proto3"`
	PgMajFault              uint64       `protobuf:"varint,10,opt,name=pg_maj_fault,proto3"`
	InactiveAnon            uint64       `protobuf:"varint,11,opt,name=inactive_anon,proto3"`
	ActiveAnon              uint64       `protobuf:"varint,12,opt,name=active_anon,proto3"`
	InactiveFile            uint64       `protobuf:"varint,13,opt,name=inactive_file,proto3"`
	ActiveFile              uint64       `protobuf:"varint,14,opt,name=active_file,proto3"`
	Unevictable             uint64       `protobuf:"varint,15,opt,name=unevictable,proto3"`
	HierarchicalMemoryLimit uint64       `protobuf:"varint,16,opt,name=hierarchical_memory_limit,proto3"`
	HierarchicalSwapLimit   uint64       `protobuf:"varint,17,opt,name=hierarchical_swap_limit,proto3"`
	TotalCache              uint64       `protobuf:"varint,18,opt,name=total_cache,proto3"`
	TotalRSS                uint64       `protobuf:"varint,19,opt,name=total_rss,proto3"`
	TotalRSSHuge            uint64       `protobuf:"varint,20,opt,name=total_rss_huge,proto3"`
	TotalMappedFile         uint64       `protobuf:"varint,21,opt,name=total_mapped_file,proto3"`
	TotalDirty              uint64       `protobuf:"varint,22,opt,name=total_dirty,proto3"`
	TotalWriteback          uint64       `protobuf:"varint,23,opt,name=total_writeback,proto3"`
	TotalPgPgIn             uint64       `protobuf:"varint,24,opt,name=total_pg_pg_in,proto3"`
	TotalPgPgOut            uint64       `protobuf:"varint,25,opt,name=total_pg_pg_out,proto3"`
	TotalPgFault            uint64       `protobuf:"varint,26,opt,name=total_pg_fault,proto3"`
	TotalPgMajFault         uint64       `protobuf:"varint,27,opt,name=total_pg_maj_fault,proto3"`
	TotalInactiveAnon       uint64       `protobuf:"varint,28,opt,name=total_inactive_anon,proto3"`
	TotalActiveAnon         uint64       `protobuf:"varint,29,opt,name=total_active_anon,proto3"`
	TotalInactiveFile       uint64       `protobuf:"varint,30,opt,name=total_inactive_file,proto3"`
	TotalActiveFile         uint64       `protobuf:"varint,31,opt,name=total_active_file,proto3"`
	TotalUnevictable        uint64       `protobuf:"varint,32,opt,name=total_unevictable,proto3"`
	Usage                   *MemoryEntry `protobuf:"bytes,33,opt,name=usage,proto3"`
	Swap                    *MemoryEntry `protobuf:"bytes,34,opt,name=swap,proto3"`
	Kernel                  *MemoryEntry `protobuf:"bytes,35,opt,name=kernel,proto3"`
	KernelTCP               *MemoryEntry `protobuf:"bytes,36,opt,name=kernel_tcp,proto3"`
}

type BlkIOStat struct {
	IoServiceBytesRecursive []*BlkIOEntry `protobuf:"bytes,1,rep,name=io_service_bytes_recursive,proto3"`
	IoServicedRecursive     []*BlkIOEntry `protobuf:"bytes,2,rep,name=io_serviced_recursive,proto3"`
	IoQueuedRecursive       []*BlkIOEntry `protobuf:"bytes,3,rep,name=io_queued_recursive,proto3"`
	IoServiceTimeRecursive  []*BlkIOEntry `protobuf:"bytes,4,rep,name=io_service_time_recursive,proto3"`
	IoWaitTimeRecursive     []*BlkIOEntry `protobuf:"bytes,5,rep,name=io_wait_time_recursive,proto3"`
	IoMergedRecursive       []*BlkIOEntry `protobuf:"bytes,6,rep,name=io_merged_recursive,proto3"`
	IoTimeRecursive         []*BlkIOEntry `protobuf:"bytes,7,rep,name=io_time_recursive,proto3"`
	SectorsRecursive        []*BlkIOEntry `protobuf:"bytes,8,rep,name=sectors_recursive,proto3"`
}

type RdmaStat struct {
	Current []*RdmaEntry `protobuf:"bytes,1,rep,name=current,proto3"`
	Limit   []*RdmaEntry `protobuf:"bytes,2,rep,name=limit,proto3"`
}

type MemoryOomControl struct {
	OomKillDisable uint64 `protobuf:"varint,1,opt,name=oom_kill_disable,proto3"`
	UnderOom       uint64 `protobuf:"varint,2,opt,name=under_oom,proto3"`
	OomKill        uint64 `protobuf:"varint,3,opt,name=oom_kill,proto3"`
}

type CPUUsage struct {
	Total  uint64   `protobuf:"varint,1,opt,name=total,proto3"`
	Kernel uint64   `protobuf:"varint,2,opt,name=kernel,proto3"`
	User   uint64   `protobuf:"varint,3,opt,name=user,proto3"`
	PerCPU []uint64 `protobuf:"varint,4,rep,packed,name=per_cpu,proto3"`
}

type Throttle struct {
	Periods          uint64 `protobuf:"varint,1,opt,name=periods,proto3"`
	ThrottledPeriods uint64 `protobuf:"varint,2,opt,name=throttled_periods,proto3"`
	ThrottledTime    uint64 `protobuf:"varint,3,opt,name=throttled_time,proto3"`
}

type MemoryEntry struct {
	Limit   uint64 `protobuf:"varint,1,opt,name=limit,proto3"`
	Usage   uint64 `protobuf:"varint,2,opt,name=usage,proto3"`
	Max     uint64 `protobuf:"varint,3,opt,name=max,proto3"`
	Failcnt uint64 `protobuf:"varint,4,opt,name=failcnt,proto3"`
}

type BlkIOEntry struct {
	Op     string `protobuf:"bytes,1,opt,name=op,proto3"`
	Device string `protobuf:"bytes,2,opt,name=device,proto3"`
	Major  uint64 `protobuf:"varint,3,opt,name=major,proto3"`
	Minor  uint64 `protobuf:"varint,4,opt,name=minor,proto3"`
	Value  uint64 `protobuf:"varint,5,opt,name=value,proto3"`
}

type RdmaEntry struct {
	Device     string `protobuf:"bytes,1,opt,name=device,proto3"`
	HcaHandles uint32 `protobuf:"varint,2,opt,name=hca_handles,proto3"`
	HcaObjects uint32 `protobuf:"varint,3,opt,name=hca_objects,proto3"`
}
