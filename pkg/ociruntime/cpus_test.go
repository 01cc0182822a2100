// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// quotaOf is the file with the quota of a directory, and what stands in it.
func quotaOf(t *testing.T, dir string) string {
	t.Helper()
	if unified() {
		return strings.TrimSpace(read(t, filepath.Join(dir, "cpu.max")))
	}
	return strings.TrimSpace(read(t, filepath.Join(dir, "cpu.cfs_quota_us")))
}

func quota(us int64) *specs.LinuxResources {
	return &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &us, Period: new(uint64(cgroup.UsualPeriod))}}
}

func needCPUQuotas(t *testing.T) {
	t.Helper()
	if unified() && !controlled("cpu") {
		t.Skip("SKIPPED: cgroup v2 has no controller cpu: make test-v2")
	}
}

// cgroup v1 refuses a cgroup more than the one above it has.
func TestCPUs_OfAnExecAboveTheContainers(t *testing.T) {
	needCPUQuotas(t)
	c := limited(t, quota(50000))
	c.ExecLimits = &limit.Limits{CPUs: 1000}
	b := create(t, c).start()
	for _, l := range []*limit.Limits{c.ExecLimits, {CPUs: 400}, {CPUs: 100}} {
		runExec(t, b, l, "sleep", "1000")
	}
	own := b.Cgroup().Path("cpu")
	want := func(when string, v1, v2 [3]string) {
		t.Helper()
		if unified() {
			v1 = v2
		}
		for i, want := range v1 {
			if got := quotaOf(t, filepath.Join(own, "exec-"+string(rune('1'+i)))); got != want {
				t.Errorf("quota of exec %d %s is %s, want %s", i+1, when, got, want)
			}
		}
	}
	v2 := [3]string{"100000 100000", "40000 100000", "10000 100000"}
	want("at its start", [3]string{"50000", "40000", "10000"}, v2)
	refused := quota(20000)
	refused.BlockIO = &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{{Rate: 1}}} // of no disk
	if err := b.Update(refused); err == nil {
		t.Error("an update for a disk that is not there succeeded")
	}
	want("after a refused update", [3]string{"50000", "40000", "10000"}, v2)
	must(t, b.Update(quota(20000)))
	want("after the container has less", [3]string{"20000", "20000", "10000"}, v2)
}

// A limit on runs only lowers, so it is never why a create or an update fails.
func TestCPUs_OfAContainerAboveThePods(t *testing.T) {
	needCPUQuotas(t)
	pod := "/sys/fs/cgroup/cpu/" + parent()
	file, none := filepath.Join(pod, "cpu.cfs_quota_us"), "-1"
	if unified() {
		pod = "/sys/fs/cgroup/" + parent()
		file, none = filepath.Join(pod, "cpu.max"), "max"
		must(t, cgroup.Write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu"))
	}
	must(t, os.MkdirAll(pod, 0o755))
	must(t, cgroup.Write(file, "50000"))
	t.Cleanup(func() { must(t, cgroup.Write(file, none)) })
	l := &limit.Limits{CPUs: 1000}
	c := newConfig(t, "sleep", "1000")
	c.Limits, c.Spec.Linux.Resources = l, l.Lower(nil, unified(), true) // as pkg/task does
	b := create(t, c).start()
	want := map[bool]string{false: "50000", true: "100000 100000"}[unified()]
	if got := quotaOf(t, b.Cgroup().Path("cpu")); got != want {
		t.Errorf("quota of the container is %s, want %s", got, want)
	}
	must(t, b.Update(&specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(0))}})) // says nothing
	must(t, b.Update(quota(70000)))
	want = map[bool]string{false: "50000", true: "70000 100000"}[unified()]
	if got := quotaOf(t, b.Cgroup().Path("cpu")); got != want {
		t.Errorf("quota of the container after an update is %s, want %s", got, want)
	}
}

// In another period than the pod's, the quota of the container is rounded down once more than that of its execs.
func TestCPUs_RoundedBelowAnExecs(t *testing.T) {
	if unified() {
		t.Skip("SKIPPED: cgroup v2 allows a cgroup more than the one above")
	}
	pod := "/sys/fs/cgroup/cpu/" + parent()
	must(t, os.MkdirAll(pod, 0o755))
	must(t, cgroup.Write(filepath.Join(pod, "cpu.cfs_period_us"), "30000"))
	eventually(t, "the cgroups of former tests are freed", func() bool {
		return cgroup.Write(filepath.Join(pod, "cpu.cfs_quota_us"), "10000") == nil
	})
	t.Cleanup(func() {
		must(t, cgroup.Write(filepath.Join(pod, "cpu.cfs_quota_us"), "-1"))
		must(t, cgroup.Write(filepath.Join(pod, "cpu.cfs_period_us"), "100000"))
	})
	l := &limit.Limits{CPUs: 1000}
	c := newConfig(t, "sleep", "1000")
	c.ExecLimits, c.Limits, c.Spec.Linux.Resources = l, l, l.Lower(nil, false, true)
	b := create(t, c).start()
	runExec(t, b, l, "sleep", "1000")
	must(t, b.Update(&specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: new(int64(40000)), Period: new(uint64(50000))}}))
}

// runExec starts an exec, and ends it with the test.
func runExec(t *testing.T, b *box, l *limit.Limits, args ...string) {
	t.Helper()
	streams, err := stdio.Open(t.Context(), stdio.Config{Stdout: "file:///dev/null"}, idmap.Owner{})
	must(t, err)
	t.Cleanup(func() { must(t, streams.Close()) })
	h, err := b.Exec(t.Context(), command(args...), l, streams)
	if err != nil {
		t.Fatalf("exec with %d thousandths: %v", l.CPUs, err)
	}
	t.Cleanup(func() { _ = h.Signal(9); h.Wait() }) // it may have ended with the container
}

// An exec gets what the container has, while that changes.
func TestCPUs_OfExecsDuringUpdates(t *testing.T) {
	needCPUQuotas(t)
	c := limited(t, quota(50000))
	c.ExecLimits = &limit.Limits{CPUs: 1000}
	b := create(t, c).start()
	updates := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() { // ends with ctx
		var err error
		for us := int64(20000); err == nil && ctx.Err() == nil; us = 70000 - us {
			err = b.Update(quota(us))
		}
		updates <- err
	}()
	for range 100 {
		runExec(t, b, c.ExecLimits, "true")
	}
	stop()
	if err := <-updates; err != nil {
		t.Errorf("update: %v", err)
	}
}
