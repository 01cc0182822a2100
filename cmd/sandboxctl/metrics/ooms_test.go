// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// collected are the values by the names of containers.
func (o *ooms) collected(t *testing.T, s *node.Snapshot, events ...node.OOM) map[string]float64 {
	t.Helper()
	send := make(chan prometheus.Metric)
	go func() { defer close(send); o.collect(s, events, send) }()
	values := map[string]float64{}
	for m := range send {
		var text dto.Metric
		must(t, m.Write(&text))
		labels := map[string]string{}
		for _, l := range text.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		values[labels["namespace"]+" "+labels["pod"]+" "+labels["container"]] = text.GetCounter().GetValue()
	}
	return values
}

// The kernel's counter goes with the cgroup of a container that an OOM kill has ended.
func TestOOMs_AreCountedOverRestarts(t *testing.T) {
	start := time.Now()
	at := func(minutes int, ids ...string) *node.Snapshot {
		p := node.Pod{Namespace: "k8s.io", ID: "box", Name: "shop/web", Sandbox: true}
		for _, id := range ids {
			p.Containers = append(p.Containers, node.Container{Namespace: "k8s.io", ID: id, Name: "nginx"})
		}
		return &node.Snapshot{Time: start.Add(time.Duration(minutes) * time.Minute), Pods: []node.Pod{p}}
	}
	killed := func(id string, events uint64) node.OOM { return node.OOM{Namespace: "k8s.io", ID: id, Events: events} }
	const name = "k8s.io shop/web nginx"
	var o ooms
	for _, tc := range []struct {
		what   string
		now    *node.Snapshot
		events []node.OOM
		want   map[string]float64
	}{
		{"at first", at(0, "a"), nil, map[string]float64{name: 0}},
		{"after a kill that ended it", at(1), []node.OOM{killed("a", 1)}, map[string]float64{name: 1}},
		{"of the next one", at(2, "b"), nil, map[string]float64{name: 1}},
		{"of one that was made and killed since", at(3, "c"), []node.OOM{killed("b", 1), killed("c", 2)}, map[string]float64{name: 4}},
		{"of a container that nobody knows", at(4, "c"), []node.OOM{killed("x", 9)}, map[string]float64{name: 4}},
		{"of the container of another namespace", at(5, "c"), []node.OOM{{Namespace: "moby", ID: "c", Events: 9}}, map[string]float64{name: 4}},
		{"soon after it has gone", at(60), nil, map[string]float64{name: 4}},
		{"long after it has gone", at(66), nil, map[string]float64{}},
		// Prometheus sees no increase of a counter that begins with more than 0.
		{"killed when it is first seen", at(67, "d"), []node.OOM{killed("d", 1)}, map[string]float64{name: 0}},
		{"afterwards", at(68, "d"), nil, map[string]float64{name: 1}},
	} {
		if diff := cmp.Diff(tc.want, o.collected(t, tc.now, tc.events...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.what, diff)
		}
	}
	o.collected(t, at(200))
	if len(o.counted)+len(o.names)+len(o.told) != 0 {
		t.Errorf("of what has gone is kept: %+v", o)
	}
}
