// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"

	"sandbox.internal/shim/integration/harness"
)

// metrics are a container's, as containerd's consumers decode them.
func (t *task) metrics() any {
	t.e.Helper()
	metric, err := t.Metrics(t.e.ctx)
	t.e.must(err, "metrics")
	m, err := typeurl.UnmarshalAny(metric.Data)
	t.e.must(err, "metrics")
	return m
}

// wantOOMKills compares how many processes the metrics say were killed for lack of memory: CRI takes an exit with 137
// for such a kill when there is one (internal/cri/server/events.go).
func (t *task) wantOOMKills(want uint64) {
	t.e.Helper()
	var got uint64
	switch m := t.metrics().(type) {
	case *cgroup1.Metrics:
		got = m.GetMemoryOomControl().GetOomKill()
	case *cgroup2.Metrics:
		got = m.GetMemoryEvents().GetOomKill()
	}
	if got != want {
		t.e.Errorf("metrics say %d OOM kills, want %d", got, want)
	}
}

func TestStats_CountTheKillThatAnEventReported(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, "sh", "-c", glutton+" 2>/dev/null; echo child $?; sleep 1000")
	c.out.WaitFor(t, "child 137")
	e.waitEvents("c1", "oom c1")
	c.wantOOMKills(1)
	c.kill()
	if harness.Runtime() == harness.Ours { // exactly one
		e.wantEvents("c1", "create c1 | start c1 | oom c1 | exit c1 137 | delete c1")
	}
}

func TestStats_ReportAnOOMUntilDelete(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, strings.Fields(glutton)...)
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	c.wantOOMKills(1)
	c.delete()
	if harness.Runtime() == harness.Ours {
		e.wantEvents("c1", "create c1 | start c1 | oom c1 | exit c1 137 | delete c1")
	}
}

func TestStats_AndEventsReportAGroupKill(t *testing.T) {
	e := newEnv(t)
	probe := e.run("probe", config{}, "sleep", "1000")
	_, unified := probe.metrics().(*cgroup2.Metrics)
	probe.kill()
	if !unified {
		t.Skip("CANNOT RUN HERE: memory.oom.group is of cgroup v2; make test-v2 runs this")
	}
	const sleepers, processes = 3, 5 // the shell, its child and the sleepers
	group := func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		s.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"}
		return nil
	}
	c := e.run("c1", config{opts: append(with(group), little...)}, "sh", "-c",
		strings.Repeat("sleep 1000 & ", sleepers)+glutton+"; echo survived; sleep 1000")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137: the shell is killed with its child", got)
	}
	events, ok := c.metrics().(*cgroup2.Metrics)
	if !ok {
		t.Fatal("metrics are of cgroup v1 now")
	}
	// The kernel counts the process that it chose, and then again as one of the group unless that is gone already
	// (mm/oom_kill.c, oom_kill_process). It does not count those that the death of init, the first of the group to be
	// killed, ends before it comes to them.
	const chosenAndInit = 2
	groups, kills := events.GetMemoryEvents().GetOomGroupKill(), events.GetMemoryEvents().GetOomKill()
	if groups != 1 || kills < chosenAndInit || kills > processes+1 {
		t.Errorf("metrics say %d OOM kills of groups and %d of processes, want 1 and from %d to %d", groups,
			kills, chosenAndInit, processes+1)
	}
	counted, err := harness.CgroupFile("/"+e.namespace+"/c1", "", "memory.events")
	e.must(err, "the kernel's count")
	for _, line := range []string{fmt.Sprintf("oom_kill %d", kills), fmt.Sprintf("oom_group_kill %d", groups)} {
		if !slices.Contains(strings.Split(counted, "\n"), line) {
			t.Errorf("metrics say %q, the kernel %q", line, counted)
		}
	}
	c.delete()
	e.waitEvents("c1", "delete c1")
	// The kernel counts one after the other, so the shim may see the count grow more than once.
	text := e.events.Text("c1")
	if told := uint64(strings.Count(text, "oom c1")); harness.Runtime() == harness.Ours && (told < 1 || told > kills) {
		t.Errorf("events = %q, want from 1 to %d times oom c1", text, kills)
	}
	if strings.Contains(c.out.String(), "survived") {
		t.Error("the shell survived its child, want both killed")
	}
}

func TestStats_ManyCallersAtOnceHaveThem(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{opts: little}, "sleep", "1000")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 10 {
				if _, err := c.Metrics(e.ctx); err != nil {
					t.Errorf("metrics: %v", err)
				}
			}
		})
	}
	wg.Wait()
	c.kill()
}

func TestStats_NoFileIsKeptAfterDelete(t *testing.T) {
	e := newEnv(t)
	pod := e.run("pod", config{opts: with(inOneShim)}, "sleep", "1000")
	c := e.run("c1", config{opts: with(inOneShim)}, "sleep", "1000")
	shim := e.shim("pod")
	before, err := harness.ReadUsage(shim)
	e.must(err, "usage")
	pod.metrics()
	ofPod, err := harness.ReadUsage(shim)
	e.must(err, "usage")
	c.metrics()
	c.kill()
	if harness.Runtime() == harness.Ours && len(ofPod.FDs) <= len(before.FDs) {
		t.Errorf("%d descriptors after statistics, %d before: this test is about those that are kept", len(ofPod.FDs),
			len(before.FDs))
	}
	harness.CheckUsage(t, shim, ofPod, 8)
	pod.kill()
}
