// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
