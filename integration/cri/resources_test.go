// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// stats returns what CRI counts of a pod.
func (e *env) stats(p *pod) *runtimeapi.PodSandboxStats {
	e.Helper()
	r, err := e.daemon.Runtime.PodSandboxStats(e.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.ID})
	e.must(err, "stats of the pod")
	return r.GetStats()
}

func TestStats_OfContainersAndOfThePod(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		const held = 20 << 20
		a := p.run("a", []string{
			"sh", "-c",
			fmt.Sprintf("head -c %d /dev/zero >/dev/shm/held; echo ready; while :; do :; done", held),
		})
		b := p.run("b", forever)
		a.wantLog("ready\n")
		harness.Eventually(e, "the numbers of both containers", func() error {
			list, err := e.daemon.Runtime.ListContainerStats(e.ctx,
				&runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{PodSandboxId: p.ID}})
			if err != nil || len(list.GetStats()) != 2 {
				return fmt.Errorf("%d containers: %w", len(list.GetStats()), err)
			}
			byID := map[string]*runtimeapi.ContainerStats{}
			for _, s := range list.GetStats() {
				byID[s.GetAttributes().GetId()] = s
			}
			busy, idle := byID[a.id], byID[b.id]
			cpu := busy.GetCpu().GetUsageCoreNanoSeconds().GetValue()
			idleCPU := idle.GetCpu().GetUsageCoreNanoSeconds().GetValue()
			if cpu <= idleCPU {
				return fmt.Errorf("CPU time of the busy one = %d, of the idle one %d", cpu, idleCPU)
			}
			if busy.GetCpu().GetUsageNanoCores().GetValue() == 0 {
				return fmt.Errorf("the busy one uses no CPU: %v", busy.GetCpu())
			}
			if memory := busy.GetMemory().GetUsageBytes().GetValue(); memory < held {
				return fmt.Errorf("memory of the one that holds %d = %d", held, memory)
			}
			if idle.GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
				idle.GetMemory().GetWorkingSetBytes().GetValue() > held {
				return fmt.Errorf("working set of the idle one = %v", idle.GetMemory())
			}
			return nil
		})
		harness.Eventually(e, "the numbers of the pod", func() error {
			s := e.stats(p).GetLinux()
			switch {
			case len(s.GetContainers()) != 2:
				return fmt.Errorf("%d containers, want 2", len(s.GetContainers()))
			case s.GetMemory().GetUsageBytes().GetValue() < held ||
				s.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0:
				return fmt.Errorf("memory %v and CPU %v, want those of its cgroup", s.GetMemory(), s.GetCpu())
			case s.GetNetwork().GetDefaultInterface().GetName() != "eth0":
				return fmt.Errorf("interface %v, want eth0", s.GetNetwork())
			case s.GetProcess().GetProcessCount().GetValue() < 2:
				return fmt.Errorf("%v processes, want 2 at least", s.GetProcess())
			}
			return nil
		})
		harness.Eventually(e, "metrics of the containers", func() error {
			r, err := e.daemon.Runtime.ListPodSandboxMetrics(e.ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
			if err != nil {
				return err
			}
			for _, m := range r.GetPodMetrics() {
				if of := m.GetContainerMetrics(); m.GetPodSandboxId() == p.ID && len(of) == 2 && len(of[0].GetMetrics()) > 0 {
					return nil
				}
			}
			return fmt.Errorf("there are %v", r.GetPodMetrics())
		})
	})
}

// limits are resources of a container.
func limits(set func(*runtimeapi.LinuxContainerResources)) change {
	return func(c *runtimeapi.ContainerConfig) { set(c.GetLinux().GetResources()) }
}

// file reads a file of a container's cgroup, v1's or v2's.
func (c *container) cgroupFile(v1, v2 string) string {
	c.pod.e.Helper()
	text, err := harness.CgroupFile(c.pod.e.cgroup+"/"+c.id, v1, v2)
	c.pod.e.must(err, "cgroup of the container")
	return text
}

func TestUpdate_LimitsOfAContainer(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		const before, after = 64 << 20, 128 << 20
		c := p.run("c", forever, limits(func(r *runtimeapi.LinuxContainerResources) {
			r.MemoryLimitInBytes, r.CpuPeriod, r.CpuQuota, r.CpuShares = before, 100000, 50000, 512
		}))
		want := func(memory int, quota string) {
			e.Helper()
			if got := c.cgroupFile("memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(memory) {
				e.Errorf("memory limit = %s, want %d", got, memory)
			}
			if got := strings.Fields(c.cgroupFile("cpu.cfs_quota_us", "cpu.max"))[0]; got != quota {
				e.Errorf("CPU quota = %s, want %s", got, quota)
			}
		}
		want(before, "50000")
		update := func(id string, r *runtimeapi.LinuxContainerResources) error {
			_, err := e.daemon.Runtime.UpdateContainerResources(e.ctx,
				&runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
			return err
		}
		e.must(update(c.id, &runtimeapi.LinuxContainerResources{
			MemoryLimitInBytes: after, CpuPeriod: 100000,
			CpuQuota: 70000,
		}), "update")
		want(after, "70000")
		status := c.status().GetResources().GetLinux()
		if status.GetMemoryLimitInBytes() != after || status.GetCpuQuota() != 70000 || status.GetCpuShares() != 512 {
			e.Errorf("status tells %v, want what was set", status)
		}
		if err := update(c.id, &runtimeapi.LinuxContainerResources{CpuPeriod: 1}); err == nil {
			e.Error("update with a CPU period of 1 us = nil, want an error")
		}
		want(after, "70000")
		idle := p.create("idle", forever) // an update before the start is used at the start
		e.must(update(idle.id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: after}),
			"update before the start")
		idle.start()
		if got := idle.cgroupFile("memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(after) {
			e.Errorf("memory limit after an update before the start = %s, want %d", got, after)
		}
	})
}

func TestOOM_ContainerOverItsLimitIsKilled(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		limit := limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 32 << 20 })
		bystander := p.run("bystander", forever)
		// tail keeps the last line, which has no end. The second container lives on after the kill of its child.
		first := p.run("first", []string{"tail", "/dev/zero"}, limit)
		if status := first.wantExit(137); status.GetReason() != "OOMKilled" {
			e.Errorf("reason = %q, want OOMKilled", status.GetReason())
		}
		child := p.run("child", []string{"sh", "-c", "tail /dev/zero; exit 3"}, limit)
		child.wantExit(3)
		killed := p.run("killed", forever)
		killed.stop(0)
		if status := killed.wantExit(137); status.GetReason() != "Error" {
			e.Errorf("reason of one that was killed = %q, want Error", status.GetReason())
		}
		bystander.wantExec("well", "echo", "well")
	})
}

// unified reports whether cgroup v2 is the only one.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// booted reports whether systemd is pid 1 (sd_booted(3)).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

func TestCgroupParent_PodInASlice(t *testing.T) {
	if !booted() {
		harness.Lacking(t, "systemd", "systemd as pid 1 (make test-systemd)")
	}
	eachWay(t, func(e *env) {
		slice := strings.TrimPrefix(e.cgroup, "/") + ".slice"
		e.Cleanup(func() {
			if out, err := exec.Command("systemctl", "stop", slice).CombinedOutput(); err != nil {
				e.Errorf("stop the slice: %v: %s", err, out)
			}
		})
		p := e.pod("p", linuxPod(func(l *runtimeapi.LinuxPodSandboxConfig) { l.CgroupParent = "/" + slice }))
		c := p.run("c", forever,
			limits(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 64 << 20 }))
		scope := "cri-containerd-" + c.id + ".scope"
		limit := "MemoryMax"
		if !unified() {
			limit = "MemoryLimit"
		}
		out, err := exec.Command("systemctl", "show", "-p", limit, "-p", "Slice", scope).CombinedOutput()
		if text := string(out); err != nil || !strings.Contains(text, fmt.Sprintf("%s=%d", limit, 64<<20)) ||
			!strings.Contains(text, "Slice="+slice) {
			e.Errorf("%s: %v: %s, want the limit and the slice", scope, err, text)
		}
		c.wantExec("well", "echo", "well")
		c.end()
	})
}

func TestCheckpoint_ContainerRunsOn(t *testing.T) {
	// criu 3.17, which Debian has, knows no newer kernel than the guest's.
	if _, err := os.Stat("/run/guest"); err != nil {
		harness.Lacking(t, "guest", "a kernel that Debian's criu knows (make test-v2)")
	}
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", []string{"sh", "-c", "echo ready; while :; do sleep 1; done"})
		c.wantLog("ready\n")
		location := filepath.Join(e.dir, "checkpoint.tar")
		_, err := e.daemon.Runtime.CheckpointContainer(e.ctx,
			&runtimeapi.CheckpointContainerRequest{ContainerId: c.id, Location: location})
		e.must(err, "checkpoint")
		file, err := os.Open(location)
		e.must(err, "open the checkpoint")
		defer func() { _ = file.Close() }() // it was read
		var names []string
		for archive := tar.NewReader(file); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			e.must(err, "read the checkpoint")
			names = append(names, filepath.Clean(h.Name))
		}
		for _, want := range []string{
			"checkpoint/inventory.img", "config.dump", "spec.dump", "status.dump",
			"container.log",
		} {
			if !slices.Contains(names, want) {
				e.Errorf("the checkpoint lacks %s: %q", want, names)
			}
		}
		c.wantExec("runs on", "echo", "runs on")
	})
}
