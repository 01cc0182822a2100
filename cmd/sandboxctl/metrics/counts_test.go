// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandbox.internal/shim/cmd/sandboxctl/measure"
	"sandbox.internal/shim/cmd/sandboxctl/node"
	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

func one(counts ...uint64) shim.Histogram {
	h := shim.Histogram{Operation: "exec", Sum: time.Second, Failed: 1}
	bounds := []time.Duration{time.Millisecond, time.Second, 0}
	for i, n := range counts {
		h.Buckets = append(h.Buckets, shim.Bucket{Bound: bounds[i], Count: n})
	}
	return h
}

func TestCounts_AddUp(t *testing.T) {
	a := counts{{"ns", "exec"}: one(1, 2, 3), {"ns", "start"}: one(1)}
	b := counts{{"ns", "exec"}: one(10, 20, 30), {"other", "exec"}: one(5)}
	sum := a.plus(b)
	both := one(11, 22, 33)
	both.Sum, both.Failed = 2*time.Second, 2
	want := counts{{"ns", "exec"}: both, {"ns", "start"}: one(1), {"other", "exec"}: one(5)}
	if diff := cmp.Diff(want, sum); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(one(1, 2, 3), a[series{"ns", "exec"}]); diff != "" {
		t.Errorf("a summand has changed (-want +got):\n%s", diff)
	}
	if !sum.after(a) || a.after(sum) || a.after(a) {
		t.Error("a sum counts less than its summand")
	}
}

func TestCount(t *testing.T) {
	for list, want := range map[string]int{"": 0, "0": 1, "0-3": 4, "0-1,4,6-7": 5, "3-1": 0, "x": 0} {
		if got := count(list); got != want {
			t.Errorf("count(%q) = %d, want %d", list, got, want)
		}
	}
}

// Prometheus refuses a scrape in which a series is twice.
func TestContainers_AreOneOfEachName(t *testing.T) {
	s := &node.Snapshot{Pods: []node.Pod{{Namespace: "k8s.io", Name: "default/web", Sandbox: true, Containers: []node.Container{
		{Namespace: "k8s.io", ID: "a", Name: "web", State: node.Stopped},
		{Namespace: "k8s.io", ID: "b", Name: "web", State: node.Running},
		{Namespace: "k8s.io", ID: "c", Name: "web", State: node.Created},
	}}}}
	got := containers(s)
	if c := got[[3]string{"k8s.io", "default/web", "web"}]; len(got) != 1 || c.ID != "b" {
		t.Errorf("containers = %+v, want the one that runs", got)
	}
}

func TestShims_AreOneOfEachNameThatAnswers(t *testing.T) {
	pod := func(id, err string) node.Pod {
		return node.Pod{Namespace: "k8s.io", ID: id, Name: "default/web", Sandbox: true, Shim: node.Shim{Pid: 7, Error: err}}
	}
	for _, pods := range [][]node.Pod{{pod("a", "dead"), pod("b", "")}, {pod("b", ""), pod("a", "dead")}} {
		got := shims(&node.Snapshot{Pods: pods})
		if p := got[[2]string{"k8s.io", "default/web"}]; len(got) != 1 || p.ID != "b" {
			t.Errorf("shims = %+v, want the one that answers", got)
		}
	}
}

func TestPatience_IsBounded(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"9.5": 9500 * time.Millisecond, "1e-9": time.Second, "1e300": 5 * time.Minute, "Inf": 5 * time.Minute,
		"": 0, "x": 0, "0": 0, "-1": 0, "NaN": 0,
	} {
		if got, ok := patience(header); got != want || ok != (want > 0) {
			t.Errorf("patience of %q = %v, %t, want %v", header, got, ok, want)
		}
	}
}

// alone is a node without containerd.
func alone(t *testing.T) *node.Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, as the command does")
	}
	n, err := node.OpenLater(node.Config{Address: filepath.Join(t.TempDir(), "s"), Timeout: 10 * time.Second})
	must(t, err)
	return n
}

// What the kernel does not tell is no 0, which would look as if the counter had been reset.
func TestMetrics_WhatIsUnknownHasNoSeries(t *testing.T) {
	c := &node.Container{Usage: measure.Usage{Cgroup: "/c", Unknown: measure.Unknown{
		CPU: true, Times: true, Throttling: true, Memory: true, OOMKills: true, Pids: true,
	}}}
	for _, m := range containerMetrics() {
		if v, ok := m.value(c); ok {
			t.Errorf("%v = %v", m.desc, v)
		}
	}
}

// A container that is started again has a shim at the same address, which may have counted as much.
func TestExporter_CountsShimsAtOneAddress(t *testing.T) {
	e := newExporter(alone(t), io.Discard)
	for pid := range 3 {
		of := node.Counters{Namespace: "ns", Pid: pid + 1, Histograms: []shim.Histogram{one(uint64(1+pid%2), 1)}}
		for range 2 { // scrapes
			e.take(map[string]node.Counters{"/socket": of}, nil)
		}
	}
	got := e.sum()[series{"ns", "exec"}]
	if total(got) != 7 || got.Sum != 3*time.Second || got.Failed != 3 || got.Buckets[0].Count != 4 {
		t.Errorf("sum = %+v, want that of three shims", got)
	}
}
