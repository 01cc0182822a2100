// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// limited sets the resources of a container and leaves the rest.
func limited(r *specs.LinuxResources) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		r.Devices = s.Linux.Resources.Devices
		s.Linux.Resources = r
		return nil
	}
}

// Each limit is a property of the unit as well, so that systemd writes what the container has when it is reloaded.
func TestSystemd_LimitsSurviveAReload(t *testing.T) {
	needCgroup2(t)
	e := newSystemdEnv(t)
	limit, low, pids, quota := int64(64*mib), int64(32*mib), int64(77), int64(30000)
	period, burst, shares, weight := uint64(100000), uint64(10000), uint64(2048), uint16(200)
	c := e.run("c1", config{opts: []oci.SpecOpts{e.scoped("c1"), limited(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit, Reservation: &low},
		CPU: &specs.LinuxCPU{
			Quota: &quota, Period: &period, Burst: &burst, Shares: &shares,
			Cpus: "0-1", Mems: "0",
		},
		Pids:    &specs.LinuxPids{Limit: &pids},
		BlockIO: &specs.LinuxBlockIO{Weight: &weight},
		Unified: map[string]string{"memory.high": strconv.Itoa(48 * mib), "memory.min": strconv.Itoa(mib)},
	})}}, "sleep", "1000")
	unit := e.scopeOf("c1")
	dir := cgroupOf(t, unit)
	wantProperties(t, unit, map[string]string{
		"MemoryMax": "67108864", "MemorySwapMax": "0", "MemoryLow": "33554432", "MemoryHigh": "50331648",
		"MemoryMin":          "1048576",
		"CPUQuotaPerSecUSec": "300ms", "CPUQuotaPeriodUSec": "100ms", "AllowedCPUs": "0-1", "AllowedMemoryNodes": "0",
		"TasksMax": "77", "CPUWeight": control(t, dir, "cpu.weight"), "IOWeight": ioWeight(t, dir),
	})
	e.wantReloaded(dir)

	limit, low, pids, quota, shares, weight = 96*mib, 16*mib, 33, 50000, 512, 500
	swap := int64(128 * mib)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory:  &specs.LinuxMemory{Limit: &limit, Swap: &swap, Reservation: &low},
		CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares, Cpus: "1"},
		Pids:    &specs.LinuxPids{Limit: &pids},
		BlockIO: &specs.LinuxBlockIO{Weight: &weight},
		Unified: map[string]string{"memory.high": "max"},
	})), "update")
	wantProperties(t, unit, map[string]string{
		"MemoryMax": "100663296", "MemorySwapMax": "33554432", "MemoryLow": "16777216", "MemoryHigh": "infinity",
		"MemoryMin":          "1048576",
		"CPUQuotaPerSecUSec": "500ms", "CPUQuotaPeriodUSec": "100ms", "AllowedCPUs": "1", "AllowedMemoryNodes": "0",
		"TasksMax": "33", "CPUWeight": control(t, dir, "cpu.weight"), "IOWeight": ioWeight(t, dir),
	})
	e.wantReloaded(dir)

	// Swap off again, and idle instead of a weight.
	idle := int64(1)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}, CPU: &specs.LinuxCPU{Idle: &idle},
	})), "update")
	cpuWeight := "idle"
	if systemdVersion(t) < 252 { // which have no such weight, and the kernel refuses another one
		cpuWeight = property(t, unit, "CPUWeight")
	}
	wantProperties(t, unit,
		map[string]string{"MemorySwapMax": "0", "CPUWeight": cpuWeight, "MemoryMin": "1048576", "TasksMax": "33"})
	if got := control(t, dir, "cpu.idle"); got != "1" {
		t.Errorf("cpu.idle = %s, want 1", got)
	}
	e.wantReloaded(dir)
	c.kill()
}

// On cgroup v1 there are fewer properties, and what has none is in hierarchies that systemd leaves alone.
func TestSystemd_LimitsSurviveAReloadOnCgroup1(t *testing.T) {
	if unified() {
		lacking(t, "cgroup1", "cgroup v1 (make test-systemd CGROUP=v1)")
	}
	e := newSystemdEnv(t)
	limit, low, pids, quota := int64(64*mib), int64(32*mib), int64(77), int64(30000)
	period, shares := uint64(100000), uint64(2048)
	c := e.run("c1", config{opts: []oci.SpecOpts{e.scoped("c1"), limited(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Reservation: &low},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares, Cpus: "0-1", Mems: "0"},
		Pids:   &specs.LinuxPids{Limit: &pids},
	})}}, "sleep", "1000")
	path := strings.TrimPrefix(cgroupOf(t, e.scopeOf("c1")), memoryRoot())
	want := func(when string, files map[string]string) {
		t.Helper()
		for _, when := range []string{when, when + ", after a reload"} {
			for file, value := range files {
				if got, err := harness.CgroupFile(path, file, file); err != nil || got != value {
					t.Errorf("%s: %s = %q, %v, want %q", when, file, got, err, value)
				}
			}
			if out := systemctl(t, "daemon-reload"); out != "" {
				t.Errorf("systemctl daemon-reload: %s", out)
			}
		}
	}
	want("created", map[string]string{
		"memory.limit_in_bytes": "67108864", "memory.soft_limit_in_bytes": "33554432", "pids.max": "77",
		"cpu.cfs_quota_us": "30000", "cpu.cfs_period_us": "100000", "cpu.shares": "2048",
		"cpuset.cpus": "0-1", "cpuset.mems": "0",
	})
	limit, low, pids, quota, period, shares = 96*mib, 16*mib, 33, 20000, 50000, 512
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Reservation: &low},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares, Cpus: "1"},
		Pids:   &specs.LinuxPids{Limit: &pids},
	})), "update")
	want("updated", map[string]string{
		"memory.limit_in_bytes": "100663296", "memory.soft_limit_in_bytes": "16777216", "pids.max": "33",
		"cpu.cfs_quota_us": "20000", "cpu.cfs_period_us": "50000", "cpu.shares": "512",
		"cpuset.cpus": "1", "cpuset.mems": "0",
	})
	c.kill()
}

// ioWeight is io.weight of all devices that have none of their own.
func ioWeight(tb testing.TB, dir string) string {
	tb.Helper()
	line, _, _ := strings.Cut(control(tb, dir, "io.weight"), "\n")
	return strings.TrimPrefix(line, "default ")
}

// wantReloaded checks that a reload of systemd leaves the limits of a cgroup as they are.
func (e *env) wantReloaded(dir string) {
	e.Helper()
	before := limits(e, dir)
	if out := systemctl(e, "daemon-reload"); out != "" {
		e.Errorf("systemctl daemon-reload: %s", out)
	}
	after := limits(e, dir)
	for file, want := range before {
		if got := after[file]; got != want {
			e.Errorf("%s after a reload = %q, want %q, as before", file, got, want)
		}
	}
}

// limits reads the control files that limit or weigh something.
func limits(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	all := map[string]string{}
	for _, pattern := range []string{
		"*.max", "*.weight", "*.min", "*.low", "*.high", "cpu.idle", "cpu.max.burst",
		"cpuset.cpus", "cpuset.mems", "memory.oom.group",
	} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			tb.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				tb.Fatal(err)
			}
			all[filepath.Base(file)] = strings.TrimSpace(string(text))
		}
	}
	return all
}

// What systemd has no property for is kept when others are changed, although systemd then writes all that it knows.
func TestSystemd_UpdateKeepsWhatOnlyTheKernelKnows(t *testing.T) {
	needCgroup2(t)
	e := newSystemdEnv(t)
	c := e.run("c1", config{opts: []oci.SpecOpts{e.scoped("c1"), limited(&specs.LinuxResources{
		Unified: map[string]string{
			"memory.oom.group": "1", "cgroup.max.depth": "7", "io.weight": "55", "memory.zswap.max": "0",
		},
	})}}, "sleep", "1000")
	dir := cgroupOf(t, e.scopeOf("c1"))
	wantKept := func(when string, files map[string]string) {
		t.Helper()
		files["memory.oom.group"], files["cgroup.max.depth"], files["memory.zswap.max"] = "1", "7", "0"
		for file, want := range files {
			if got := control(t, dir, file); got != want {
				t.Errorf("%s after an update of %s = %q, want %q", file, when, got, want)
			}
		}
	}
	e.must(c.Update(e.ctx, pidsLimit(33)), "update")
	wantKept("pids.limit", map[string]string{"io.weight": "default 55", "pids.max": "33"})
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{Unified: map[string]string{"io.weight": "66"}})),
		"update")
	wantKept("io.weight", map[string]string{"io.weight": "default 66"})
	err := c.Update(e.ctx, client.WithResources(&specs.LinuxResources{Unified: map[string]string{
		"io.weight":              "77",
		"cgroup.max.descendants": "-5",
	}}))
	if err == nil {
		t.Error("update of cgroup.max.descendants to -5: no error")
	}
	wantKept("what is refused", map[string]string{"io.weight": "default 66"})
	c.kill()
}

// That a container had no CPUs of its own is a property as well.
func TestSystemd_RefusedUpdateLeavesNoCPUSet(t *testing.T) {
	needCgroup2(t)
	e := newSystemdEnv(t)
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
	unit := e.scopeOf("c1")
	dir := cgroupOf(t, unit)
	err := c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		CPU: &specs.LinuxCPU{Cpus: "0", Mems: "0"}, Unified: map[string]string{"cgroup.max.depth": "-5"},
	}))
	if err == nil {
		t.Error("update of cgroup.max.depth to -5: no error")
	}
	wantProperties(t, unit, map[string]string{"AllowedCPUs": "", "AllowedMemoryNodes": ""})
	e.wantReloaded(dir)
	c.kill()
}

// The devices that a container may use are not those of the unit's properties alone, but those and libcontainer's
// program.
func TestSystemd_DevicesSurviveAReload(t *testing.T) {
	e := newSystemdEnv(t)
	const fuse = `mknod /dev/f c 10 229
		while read -r line; do (: </dev/f) 2>/dev/null && echo $line allowed || echo $line denied; done`
	allow := spec(func(s *oci.Spec) {
		major, minor := int64(10), int64(229)
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	})
	for id, opts := range map[string][]oci.SpecOpts{
		"allowed": with(e.scoped("allowed"), allow),
		"denied":  with(e.scoped("denied")),
	} {
		keyboard, stdin := typed(e)
		c := e.run(id, config{opts: opts, stdin: stdin}, "sh", "-c", fuse)
		for _, when := range []string{"before", "after"} {
			if when == "after" {
				systemctl(t, "daemon-reload")
			}
			e.typeLine(keyboard, when)
			c.out.WaitFor(t, when+" "+id)
		}
		c.kill()
	}
}
