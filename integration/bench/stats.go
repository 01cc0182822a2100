// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

// stats times a container's metrics through containerd, whose part is the same for all shims.
func (*host) stats(ctx context.Context, t *table, column int, idle containerd.Task) error {
	for range statsPerRound {
		took, err := timed(func() error { _, err := idle.Metrics(ctx); return err })
		if err != nil {
			return err
		}
		t.add("stats", "ms", column, took)
	}
	return nil
}

// directStats times them at the shim's own socket, and how long the shim ran on a CPU for each.
func (h *host) directStats(ctx context.Context, t *table, column int, idle containerd.Task) error {
	conn, err := h.dial(ctx, idle.ID())
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // nothing is under way
	shim, err := parent(int(idle.Pid()))
	if err != nil {
		return err
	}
	service := taskapi.NewTTRPCTaskClient(client)
	begin, err := cpuTime(shim)
	if err != nil {
		return err
	}
	for range directPerRound {
		took, err := timed(func() error {
			_, err := service.Stats(ctx, &taskapi.StatsRequest{ID: idle.ID()})
			return err
		})
		if err != nil {
			return err
		}
		t.add("stats, at the shim's socket", "ms", column, took)
	}
	end, err := cpuTime(shim)
	if err != nil {
		return err
	}
	t.add("stats, the shim's CPU time", "ms", column, float64(end-begin)/float64(directPerRound)/float64(time.Millisecond))
	return nil
}

// dial connects to the shim of a container, whose address containerd notes in the bundle.
func (h *host) dial(ctx context.Context, id string) (net.Conn, error) {
	file := filepath.Join(h.dir, "state/io.containerd.runtime.v2.task", h.namespace, id, "bootstrap.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var bootstrap struct {
		Address string `json:"address"`
	}
	if err := json.Unmarshal(text, &bootstrap); err != nil {
		return nil, fmt.Errorf("decode %s: %w", file, err)
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(bootstrap.Address, "unix://"))
}

// cpuTime is how long the threads of a process have run (scheduler/sched-stats.rst, "/proc/<pid>/schedstat").
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // a thread that ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse %s: %w", file, err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}
