// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"strings"
	"testing"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

const mib = 1 << 20

func TestUpdate_ReachesTheCgroup(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: []oci.SpecOpts{oci.WithMemoryLimit(64 * mib)}}, "sleep", "1000")
	const whatever = "*"
	want := func(v1, v2, value1, value2 string) {
		t.Helper()
		got, err := harness.CgroupFile("/"+e.namespace+"/c1", v1, v2)
		if err != nil {
			t.Error(err)
		} else if got != value1 && got != value2 && value2 != whatever {
			t.Errorf("%s or %s = %q, want %q on v1 or %q on v2", v1, v2, got, value1, value2)
		}
	}
	want("memory.limit_in_bytes", "memory.max", "67108864", "67108864")
	limit, pids, quota, period, shares := int64(96*mib), int64(33), int64(50000), uint64(100000), uint64(512)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit},
		Pids:   &specs.LinuxPids{Limit: &pids},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares},
	})), "update")
	want("memory.limit_in_bytes", "memory.max", "100663296", "100663296")
	want("pids.max", "pids.max", "33", "33")
	want("cpu.cfs_quota_us", "cpu.max", "50000", "50000 100000")
	want("cpu.shares", "cpu.weight", "512", whatever) // shares become a weight by a formula that changed once
	c.kill()
}

func TestStats_CountWhatTheContainerUses(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: []oci.SpecOpts{oci.WithMemoryLimit(64 * mib)}}, "sh", "-c",
		"i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 1000 & echo ready; wait")
	c.out.WaitFor(t, "ready")
	metric, err := c.Metrics(e.ctx)
	e.must(err, "metrics")
	if metric.ID != "c1" {
		t.Errorf("metric of %q, want c1", metric.ID)
	}
	data, err := typeurl.UnmarshalAny(metric.Data)
	e.must(err, "metrics")
	var cpu, memory, limit, pids uint64
	switch m := data.(type) {
	case *cgroup1.Metrics:
		cpu, memory = m.GetCPU().GetUsage().GetTotal(), m.GetMemory().GetUsage().GetUsage()
		limit, pids = m.GetMemory().GetUsage().GetLimit(), m.GetPids().GetCurrent()
	case *cgroup2.Metrics:
		cpu, memory = m.GetCPU().GetUsageUsec()*1000, m.GetMemory().GetUsage()
		limit, pids = m.GetMemory().GetUsageLimit(), m.GetPids().GetCurrent()
	default:
		t.Fatalf("metrics are %T", data)
	}
	if cpu < 1000000 {
		t.Errorf("CPU time = %d ns, want a millisecond at least", cpu)
	}
	if memory < 4096 || memory > 64*mib {
		t.Errorf("memory = %d, want some, and less than the limit", memory)
	}
	if limit != 64*mib {
		t.Errorf("memory limit = %d, want %d", limit, 64*mib)
	}
	if pids != 2 { // the shell and sleep
		t.Errorf("pids = %d, want 2", pids)
	}
	c.kill()
}

func TestOOM_ContainerOverItsLimitIsKilledAndReported(t *testing.T) {
	e := newEnv(t)
	opts := []oci.SpecOpts{oci.WithMemoryLimit(24 * mib), oci.WithMemorySwap(24 * mib)}
	// More than once, since a shim that does not look on purpose sends the two in either order.
	for _, id := range []string{"c1", "c2", "c3", "c4"} {
		c := e.run(id, config{opts: opts}, "dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1")
		c.wantExit(137)
		e.waitEvents(id, "oom "+id)
		e.waitEvents(id, "exit "+id+" 137")
		if harness.Runtime() == harness.Ours { // the runc shim promises no order on cgroup v1
			e.wantEvents(id, strings.ReplaceAll("create ID | start ID | oom ID | exit ID 137 | delete ID", "ID", id))
		}
	}
}
