// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// counters are what a shim of this project counts.
type counters struct {
	histograms []shim.Histogram
	execs      []shim.Execs
	peer       int  // pid of the process that answered
	silent     bool // it did not answer when it was last asked for them
}

// count asks a shim for its counters.
func (s *shimState) count(ctx context.Context) {
	s.silent = true
	client, err := shim.Dial(ctx, s.address)
	if err != nil {
		return
	}
	defer client.Close()
	if histograms, execs, err := client.Histograms(ctx); err == nil {
		s.counters = counters{peer: client.Peer, histograms: histograms, execs: execs}
	}
}

// spreadCounters applies what a shim has counted to its containers. An event only signals that there is something to
// count: it comes later than the shim counts, and would be counted twice.
func (s *shimState) spreadCounters(containers []*container) {
	counted := map[string]shim.Execs{}
	for _, e := range s.execs {
		counted[e.ContainerID] = e
	}
	for _, c := range containers {
		if e, ok := counted[c.ID]; ok {
			c.ExecsKnown, c.ExecsStarted, c.Execs = true, e.Started, int(e.Running)
		}
	}
}

// CountAll makes each snapshot ask all shims of this project for their counters, and take OOM events from the first one
// on. Without it, only shims that an event concerns are asked.
func (n *Node) CountAll() { n.countAll, n.ooms = true, map[key]uint64{} }

// Counters are those of one shim.
type Counters struct {
	Namespace  string // of its containers
	Pid        int    // of the shim: a later one at the same socket has another
	Histograms []shim.Histogram
}

// Counters returns those of the shims of this project that have answered in the last snapshot, by their sockets, and
// the sockets of shims that have not.
func (n *Node) Counters() (answered map[string]Counters, silent map[string]bool) {
	answered, silent = map[string]Counters{}, map[string]bool{}
	for path, known := range n.shims {
		switch {
		case known.Error != "" || known.silent:
			silent[path] = true
		case !known.other:
			answered[path] = Counters{known.answer.Shim.Namespace, known.peer, known.histograms}
		}
	}
	return answered, silent
}

// OOM is how many OOM events there were of a container.
type OOM struct {
	Namespace, ID string
	Events        uint64
}

// mostOOMs is the most containers whose OOM events wait to be taken while no snapshot succeeds.
const mostOOMs = 4096

func (n *Node) addOOMs(events map[key]uint64) {
	if !n.countAll {
		return
	}
	for k, more := range events {
		if _, ok := n.ooms[k]; ok || len(n.ooms) < mostOOMs {
			n.ooms[k] += more
		}
	}
}

// TakeOOMs returns the OOM events since it was last called. CountAll must have been called.
func (n *Node) TakeOOMs() []OOM {
	var taken []OOM
	for k, events := range n.ooms {
		taken = append(taken, OOM{k.namespace, k.id, events})
	}
	clear(n.ooms)
	return taken
}
