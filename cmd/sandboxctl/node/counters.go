// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"sandbox.internal/shim/cmd/sandboxctl/shim"
)

// count asks a shim for its counters.
func (s *shimState) count(ctx context.Context) {
	client, err := shim.Dial(ctx, s.address)
	if err != nil {
		return
	}
	defer client.Close()
	if execs, err := client.Execs(ctx); err == nil {
		s.execs = execs
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
