// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"
)

const (
	copyEvery   = time.Second
	cpusetMoves = 20
	cpusetIdle  = 10 * time.Second
	rowReaction = "cpuset, a change reaches the container"
	rowKeeping  = "cpuset, CPU time while nothing changes"
)

// cpusets measures how the cpuset of a container is kept that of another cgroup: by our shim, and for the runc shim by
// a thread that looks every copyEvery, as schedulers do that have no such shim.
func (h *host) cpusets(ctx context.Context, t *table, subjects []subject) error {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cpuset.cpus.effective")); err != nil || runtime.NumCPU() < 2 {
		fmt.Fprintln(os.Stderr, "bench: LEFT OUT: cpuset: needs cgroup v2 alone and two CPUs (docs/testing-in-a-vm.md)")
		return nil
	}
	source := filepath.Join(root, h.namespace, "source") // beside the containers, which exist: there are controllers
	if err := os.Mkdir(source, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.Remove(source) }() // host.stop reports what is left
	if err := writeCPUs(source, "0-1"); err != nil {
		return err
	}
	for i, s := range subjects[:2] {
		if err := h.cpusetOf(ctx, t, i, s, source); err != nil {
			return fmt.Errorf("cpuset: %s: %w", s.name, err)
		}
	}
	return nil
}

func (h *host) cpusetOf(ctx context.Context, t *table, column int, s subject, source string) error {
	id := fmt.Sprintf("cpuset-%d", column)
	ours := column == 0
	var opts []oci.SpecOpts
	if ours {
		opts = append(opts, oci.WithAnnotations(map[string]string{
			"io.containerd.sandbox.v1/cpuset.source": filepath.Join(h.namespace, filepath.Base(source)),
		}))
	}
	task, remove, err := h.idle(ctx, s, id, opts...)
	if err != nil {
		return err
	}
	defer remove()
	destination := filepath.Join(filepath.Dir(source), id)
	cost := func() (time.Duration, error) { return shimTime(task) }
	if !ours {
		copier := startCopier(source, destination)
		defer copier.stop()
		cost = copier.cost
	}
	for i := range cpusetMoves {
		if !pause(ctx, rand.N(copyEvery)) { //nolint:gosec // any time after the last look of a copier is as likely
			return ctx.Err()
		}
		list := []string{"0", "0-1"}[i%2]
		took, err := timed(func() error { return reach(ctx, source, destination, list) })
		if err != nil {
			return err
		}
		t.add(rowReaction, "ms", column, took)
	}
	before, err := cost()
	if err != nil {
		return err
	}
	if !pause(ctx, cpusetIdle) {
		return ctx.Err()
	}
	after, err := cost()
	if err != nil {
		return err
	}
	t.add(rowKeeping, "ms/s", column, float64(after-before)/float64(time.Millisecond)/cpusetIdle.Seconds())
	return nil
}

// shimTime is how long the shim of a container has run.
func shimTime(task containerd.Task) (time.Duration, error) {
	pid, err := parent(int(task.Pid()))
	if err != nil {
		return 0, err
	}
	return cpuTime(pid)
}

func readCPUs(dir, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	return string(bytes.TrimSpace(text)), err
}

func writeCPUs(dir, list string) error {
	return os.WriteFile(filepath.Join(dir, "cpuset.cpus"), []byte(list), 0)
}

// reach writes the source and returns when the destination has it.
func reach(ctx context.Context, source, destination, list string) error {
	const again = 200 * time.Microsecond
	if err := writeCPUs(source, list); err != nil {
		return err
	}
	for {
		got, err := readCPUs(destination, "cpuset.cpus")
		if err != nil || got == list {
			return err
		}
		if !pause(ctx, again) {
			return ctx.Err()
		}
	}
}

// pause waits, and returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// copier is a goroutine, with a thread of its own, that keeps a destination the same as its source. stop ends and joins it.
type copier struct {
	tid   int
	over  chan struct{}
	ended chan struct{}
}

func startCopier(source, destination string) *copier {
	c := &copier{over: make(chan struct{}), ended: make(chan struct{})}
	started := make(chan int)
	go func() {
		defer close(c.ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		started <- unix.Gettid()
		tick := time.NewTicker(copyEvery)
		defer tick.Stop()
		last := ""
		for {
			if list, err := readCPUs(source, "cpuset.cpus.effective"); err == nil && list != last && writeCPUs(destination, list) == nil {
				last = list
			}
			select {
			case <-tick.C:
			case <-c.over:
				return
			}
		}
	}()
	c.tid = <-started
	return c
}

func (c *copier) stop() { close(c.over); <-c.ended }

// cost is how long the thread has run.
func (c *copier) cost() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", c.tid))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	return time.ParseDuration(first + "ns")
}
