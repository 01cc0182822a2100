// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/integration/harness"
)

const (
	rowStats       = "stats"
	rowStatsDirect = "stats, at the shim's socket"
	rowStatsCost   = "stats, the shim's CPU time"
)

// The CPU time of direct calls is taken for all of a turn: so many that little of it is other work of the shim.
const (
	statsPerTurn  = 10
	directPerTurn = 100
)

func statsGroup() group {
	return group{
		name: "stats", about: "the metrics of a container",
		rows: []row{
			{Name: rowStats, Unit: "ms", Target: target{Ratio: 0.50}},
			{Name: rowStatsDirect, Unit: "ms", Target: target{Ratio: 0.50}},
			{Name: rowStatsCost, Unit: "ms"},
		},
		measure: func(b *bench, ctx context.Context) error {
			return b.withIdle(ctx, "stats", func(idle []*container) error {
				return b.turns(ctx, b.settings.Rounds, func(ctx context.Context, column int, s *subject) error {
					if err := b.stats(ctx, column, idle[column]); err != nil {
						return err
					}
					return b.directStats(ctx, column, s, idle[column])
				})
			})
		},
	}
}

// stats times a container's metrics through containerd, whose part is the same for all shims.
func (b *bench) stats(ctx context.Context, column int, idle *container) error {
	for range statsPerTurn {
		took, err := timed(func() error { _, err := idle.task.Metrics(ctx); return err })
		if err != nil {
			return err
		}
		b.add(rowStats, column, took)
	}
	return nil
}

// directStats times them at the shim's own socket, and how long the shim ran on a CPU for each.
func (b *bench) directStats(ctx context.Context, column int, s *subject, idle *container) error {
	conn, err := s.host.dial(ctx, idle.ID())
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // nothing is under way
	shim, err := idle.shim()
	if err != nil {
		return err
	}
	service := taskapi.NewTTRPCTaskClient(client)
	begin, err := cpuTime(shim)
	if err != nil {
		return err
	}
	for range directPerTurn {
		took, err := timed(func() error {
			_, err := service.Stats(ctx, &taskapi.StatsRequest{ID: idle.ID()})
			return err
		})
		if err != nil {
			return err
		}
		b.add(rowStatsDirect, column, took)
	}
	end, err := cpuTime(shim)
	if err != nil {
		return err
	}
	b.add(rowStatsCost, column, milliseconds(end-begin)/directPerTurn)
	return nil
}

// dial connects to the shim of a container, whose address containerd notes in the bundle.
func (h *host) dial(ctx context.Context, id string) (net.Conn, error) {
	address, err := harness.ShimAddress(filepath.Join(h.State, "io.containerd.runtime.v2.task", h.namespace, id))
	if err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
}
