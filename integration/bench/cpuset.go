// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"
)

const (
	copyEvery   = time.Second
	cpusetMoves = 20
	cpusetIdle  = 10 * time.Second
	rowReaction = "cpuset, a change reaches the container"
	rowKeeping  = "cpuset, CPU time while nothing changes"
)

func cpusetGroup() group {
	return group{
		name: "cpuset", about: "a container's CPUs kept those of another cgroup; on cgroup v2 only",
		rows:    []row{{Name: rowReaction, Unit: "ms"}, {Name: rowKeeping, Unit: "ms/s"}},
		measure: (*bench).cpusets,
	}
}

// cpusets measures how the cpuset of a container is kept that of another cgroup: by our shim, and for the runc shim by
// a thread that looks every copyEvery, as schedulers do that have no such shim.
func (b *bench) cpusets(ctx context.Context) error {
	if _, err := os.Stat("/sys/fs/cgroup/cpuset.cpus.effective"); err != nil || runtime.NumCPU() < 2 {
		fmt.Fprintln(b.progress,
			"bench: LEFT OUT: cpuset: needs cgroup v2 alone and two CPUs (docs/testing-in-a-vm.md)")
		return nil
	}
	return b.turns(ctx, 1, func(ctx context.Context, column int, s *subject) error {
		if column != reference && column != ours {
			return nil
		}
		return b.cpusetOf(ctx, column, s)
	})
}

func (b *bench) cpusetOf(ctx context.Context, column int, s *subject) (err error) {
	id := b.id("cpuset")
	namespace := filepath.Join("/sys/fs/cgroup", s.host.namespace)
	source, destination := filepath.Join(namespace, "source"), filepath.Join(namespace, id)
	if err := os.MkdirAll(source, 0o755); err != nil { // beside the containers
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(source)) }()
	opts := []containerd.NewContainerOpts{sleeping()}
	if s.isShim() {
		opts = append(opts,
			s.withOptions("CpusetSource = '"+filepath.Join(s.host.namespace, filepath.Base(source))+"'"))
	}
	if err := controllers(ctx, b, s, namespace); err != nil {
		return err
	}
	if err := writeCPUs(source, "0-1"); err != nil {
		return err
	}
	c, err := s.run(ctx, id, opts...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	cost := func() (time.Duration, error) { return shimTime(c) }
	if !s.isShim() {
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
		b.add(rowReaction, column, took)
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
	b.add(rowKeeping, column, milliseconds(after-before)/cpusetIdle.Seconds())
	return nil
}

// controllers makes the shim's runtime enable the controllers below the namespace's cgroup: they are there when a
// container is.
func controllers(ctx context.Context, b *bench, s *subject, namespace string) error {
	if _, err := os.Stat(filepath.Join(namespace, "source/cpuset.cpus")); err == nil {
		return nil
	}
	c, err := s.run(ctx, b.id("first"), sleeping())
	if err != nil {
		return err
	}
	return c.remove(ctx)
}

// shimTime is how long the shim of a container has run.
func shimTime(c *container) (time.Duration, error) {
	pid, err := c.shim()
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

// copier is a goroutine, with a thread of its own, that keeps a destination the same as its source. stop ends and joins
// it.
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
			if list, err := readCPUs(source, "cpuset.cpus.effective"); err == nil && list != last &&
				writeCPUs(destination, list) == nil {
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
