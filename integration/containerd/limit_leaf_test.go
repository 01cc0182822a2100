// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// What holds for a container holds with limits of its execs too, for which init is in a cgroup of its own on v2.
func TestLimit_TheContainerIsAsBefore(t *testing.T) {
	j := newJudge(t)
	personality := spec(func(s *oci.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} })
	for id, opts := range map[string][]oci.SpecOpts{
		"launcher": nil, "fallback": {personality}, "hostpids": {oci.WithHostNamespace(specs.PIDNamespace)},
	} {
		c := j.run(id, config{opts: append(append(with(j.limited("pids=20")), little...), opts...)}, "sleep", "1000")
		before := c.figures()
		x := c.family("e1") // three processes
		c.wantProcesses(4)
		harness.Eventually(t, id+": statistics count 4 processes", func() error { // one that made a file may end just now
			if got := c.figures().pids; got != 4 {
				return fmt.Errorf("they count %d", got)
			}
			return nil
		})

		j.must(c.Pause(j.ctx), "pause")
		wantStatus(c, client.Paused)
		j.must(c.Resume(j.ctx), "resume")
		j.must(x.Kill(j.ctx, syscall.SIGTERM), "SIGTERM to the first process alone")
		if got := x.exit(); got != 143 {
			t.Errorf("%s: status of e1 = %d, want 143", id, got)
		}
		if v := j.verdict(id, "e1"); v.Limit != "" || v.Signal != 15 {
			t.Errorf("%s: verdict on e1 %+v", id, v)
		}
		x.delete()
		c.wantProcesses(1) // what it left is gone

		// The memory of the container, by an exec that has no limit of its own.
		if _, v := j.exec(c, "glutton", nil, "exec "+glutton); v.Limit != "memory" || v.Status != 137 {
			t.Errorf("%s: verdict on a glutton %+v", id, v)
		}
		j.waitEvents(id, "oom")
		memory := int64(200 * mib)
		j.must(c.Update(j.ctx, client.WithResources(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory}})), "update")
		if _, v := j.exec(c, "modest", nil, "exec "+glutton); v.Status != 0 || v.MemoryPeak < 128*mib {
			t.Errorf("%s: verdict after an update %+v", id, v)
		}
		if after := c.figures(); after.cpu <= before.cpu {
			t.Errorf("%s: CPU time %v, before %v", id, after.cpu, before.cpu)
		}

		y := c.family("e2")
		j.must(c.Task.Kill(j.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
		if got := y.exit(); got != 137 {
			t.Errorf("%s: status of e2 = %d, want 137", id, got)
		}
		y.delete()
		c.wantExit(137)
	}
}

// A program that asks for its limits finds those of the container.
func TestLimit_CgroupNamespaceShowsTheContainersLimits(t *testing.T) {
	if cgroups.Mode() != cgroups.Unified {
		lacking(t, "cgroup2", "cgroup v2 with controllers")
	}
	harness.OursOnly(t, "exec-limits")
	e := newEnv(t)
	const show = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cgroup.procs /proc/self/cgroup"
	c := e.run("c1", config{opts: append(with(execLimits("memory=8Mi"),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}), oci.WithMounts([]specs.Mount{
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}},
		})), little...)}, "sh", "-c", show+"; sleep 1000")
	c.out.WaitFor(t, "/init")
	if got, want := c.out.String(), fmt.Sprintf("%d\n0::/init\n", 24*mib); got != want {
		t.Errorf("init sees %q, want %q", got, want)
	}
	x := e.asExec(c, "e1", nil, show)
	x.wantExit(0)
	if got, want := x.out.String(), fmt.Sprintf("%d\n0::/exec-1\n", 24*mib); got != want {
		t.Errorf("an exec sees %q, want %q", got, want)
	}
	c.kill()
}

// Fifty a second for a minute leave nothing: SHIM_TEST_RUNS=3000. Otherwise it is fewer, some at a time.
func TestLimit_ManyRunsLeaveNothing(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("wall-time=20s,cpu-time=5s,memory=64Mi,pids=32,output=64Ki"))}, "sleep", "1000")
	pid := harness.Shims(j.namespace, "")[0].Pid
	j.exec(c, "warm", nil, "true")
	before, err := harness.ReadUsage(pid)
	j.must(err, "usage of the shim")
	const atATime = 4
	rounds := setting(t, "SHIM_TEST_RUNS", 60) / atATime
	began := time.Now()
	for i := range rounds {
		var all []*process
		for k := range atATime {
			all = append(all, j.asExec(c, fmt.Sprintf("x%d-%d", i, k), nil, "echo out; (setsid sleep 100 &); exit 3"))
		}
		for _, x := range all {
			x.wantExit(3)
		}
	}
	t.Logf("%d runs in %v", rounds*atATime, time.Since(began).Round(time.Millisecond))
	c.wantProcesses(1)
	harness.Eventually(t, "no cgroup of an exec is left", func() error {
		if left := c.execCgroups(); len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		}
		return nil
	})
	harness.CheckUsage(t, pid, before, 4)
	c.kill()
}

// A reload of systemd leaves the cgroups below a scope alone.
func TestSystemd_LimitsOfExecs(t *testing.T) {
	needCgroup2(t)
	harness.OursOnly(t, "exec-limits")
	j := judge{newSystemdEnv(t), publicDir(t)}
	j.allow("verdict-file")
	c := j.run("c1", config{opts: with(j.scoped("c1"), oci.WithMemoryLimit(128*mib),
		j.limited("memory=32Mi,pids=20"))}, "sleep", "1000")
	unit := j.scopeOf("c1")
	dir := cgroupOf(t, unit)
	for _, when := range []string{"before", "after"} {
		if _, v := j.exec(c, "glutton-"+when, nil, "exec "+glutton); v.Limit != "memory" || v.MemoryPeak > 32*mib {
			t.Errorf("verdict %s a reload: %+v", when, v)
		}
		if _, v := j.exec(c, "forks-"+when, nil, "i=0; while [ $i -lt 50 ]; do sleep 1000 & i=$((i+1)); done"); v.Limit != "pids" {
			t.Errorf("verdict %s a reload: %+v", when, v)
		}
		j.wantReloaded(dir)
	}
	wantProperty(t, unit, "MemoryMax", fmt.Sprint(128*mib))
	c.kill()
	wantNoUnit(t, unit, dir)
}

// systemd 253 and later know memory.oom.group as OOMPolicy=kill, with which a kill in any cgroup of a scope ends all of it.
func TestSystemd_LimitsContainerOutlivesAnExecWithoutMemory(t *testing.T) {
	needCgroup2(t)
	harness.OursOnly(t, "exec-limits")
	j := judge{newSystemdEnv(t), publicDir(t)}
	j.allow("verdict-file", "listen")
	whole := spec(func(s *oci.Spec) { s.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"} })
	for id, more := range map[string][]oci.SpecOpts{
		"launcher":     nil,
		"libcontainer": {sockets("unix:///tmp/serves")},
	} {
		opts := append(with(j.scoped(id), oci.WithMemoryLimit(128*mib), whole, j.limited("memory=32Mi")), more...)
		c := j.run(id, config{opts: opts}, "sh", "-c", "trap 'echo ended' TERM; echo ready; while :; do sleep 0.1; done")
		c.out.WaitFor(t, "ready")
		unit := j.scopeOf(id)
		if got := control(t, cgroupOf(t, unit), "memory.oom.group"); got != "1" {
			t.Errorf("%s: memory.oom.group of the container = %s, want 1", id, got)
		}
		if systemdVersion(t) >= 253 {
			wantProperty(t, unit, "OOMPolicy", "continue")
		}
		for i := range 3 {
			if _, v := j.exec(c, fmt.Sprintf("glutton-%d", i), nil, "exec "+glutton); v.Limit != "memory" {
				t.Errorf("%s: verdict on an exec: %+v", id, v)
			}
		}
		wantProperty(t, unit, "ActiveState", "active")
		if got := c.out.String(); strings.Contains(got, "ended") {
			t.Errorf("%s: the container was told to end: %q", id, got)
		}
		c.kill()
	}
}
