// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sandbox.internal/shim/cmd/sandboxctl/node"
)

var oomDesc = prometheus.NewDesc(prefix+"container_oom_events_total",
	"OOM kills that containerd told of, over restarts of the container.", ofContainer, nil)

// keepCount is how long the count of a container that has gone is kept.
const keepCount = time.Hour

// ooms counts the OOM events of containers by their labels, which those that are started again have in common. The
// kernel's counter goes with the cgroup, which an OOM kill ends immediately if it kills all processes in it.
type ooms struct {
	counted map[[3]string]oomCount  // by labels; without those that are 0
	names   map[[2]string][3]string // labels by namespace and id, as of the last scrape
	told    map[[3]string]bool      // in the last scrape
}

type oomCount struct {
	events uint64
	seen   time.Time
}

func (o *ooms) collect(s *node.Snapshot, events []node.OOM, send chan<- prometheus.Metric) {
	names, tell := map[[2]string][3]string{}, map[[3]string]bool{}
	for i := range s.Pods {
		p := &s.Pods[i]
		for _, c := range p.Containers {
			labels := [3]string{c.Namespace, podLabel(p), c.Name}
			names[[2]string{c.Namespace, c.ID}], tell[labels] = labels, true
		}
	}
	counted := map[[3]string]oomCount{}
	for labels, c := range o.counted {
		if tell[labels] {
			c.seen = s.Time
		}
		if s.Time.Sub(c.seen) <= keepCount {
			counted[labels], tell[labels] = c, true
		}
	}
	for _, e := range events {
		labels, ok := names[[2]string{e.Namespace, e.ID}]
		if !ok { // it has gone since the last scrape
			labels, ok = o.names[[2]string{e.Namespace, e.ID}]
		}
		if ok {
			counted[labels], tell[labels] = oomCount{counted[labels].events + e.Events, s.Time}, true
		}
	}
	for labels := range tell {
		value := float64(counted[labels].events)
		if !o.told[labels] { // Prometheus sees no increase of what begins with more
			value = 0
		}
		send <- prometheus.MustNewConstMetric(oomDesc, prometheus.CounterValue, value, labels[:]...)
	}
	o.counted, o.names, o.told = counted, names, tell
}
