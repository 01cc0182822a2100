// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestRemove_RemovesNestedCgroups(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			nest(t, nest(t, c, "outer"), "inner")
			nest(t, c, "other")
			if err := c.Remove(deadline(t)); err != nil {
				t.Fatalf("Remove: %v", err)
			}
			for _, dir := range c.dirs {
				if exists(dir) {
					t.Errorf("%s is there after Remove", dir)
				}
			}
			if err := c.Remove(deadline(t)); err != nil {
				t.Errorf("Remove of a cgroup that is gone: %v", err)
			}
		})
	}
}

func TestRemove_WaitsForTheLastProcess(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			p := start(t, nest(t, c, "nested"), "read x")
			removed := make(chan error, 1)
			go func() { removed <- c.Remove(deadline(t)) }() // ends within the deadline
			testx.Must(t, p.Process.Signal(syscall.SIGKILL))
			if err := <-removed; err != nil {
				t.Errorf("Remove: %v", err)
			}
		})
	}
}

func TestRemove_NamesTheProcessesInTheWay(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			p := start(t, nest(t, c, "nested"), "read x")
			why := errors.New("out of patience")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
			defer cancel()
			err := c.Remove(ctx)
			want := "it holds 1 processes [" + strconv.Itoa(p.Process.Pid) + " (sh, state " // S, or R if it has not come to read
			if !errors.Is(err, why) || !strings.Contains(err.Error(), want) {
				t.Errorf("Remove: %v, want %q and %q", err, want, why)
			}
			if p.Process.Signal(syscall.Signal(0)) != nil {
				t.Error("Remove killed the process")
			}
		})
	}
}

// A workload that splits its threads over cgroups (kernel, cgroup-v2.rst, Threads) is killed and removed like any
// other.
func TestKillAndRemove_OfAThreadedCgroup(t *testing.T) {
	c := makeV2(t)
	threads := nest(t, c, "threads")
	testx.Write(t, filepath.Join(threads.Path(""), "cgroup.type"), "threaded")
	p := start(t, c, "sleep 1000 & read x")
	testx.Write(t, filepath.Join(threads.Path(""), "cgroup.threads"), strconv.Itoa(p.Process.Pid))
	testx.Eventually(t, "the domain lists the shell, whose thread is in the nested cgroup, and its child", func() bool {
		pids, err := c.Procs()
		return err == nil && len(pids) == 2 && slices.Contains(pids, p.Process.Pid)
	})
	kill(t, c)
	if got := p.signalled(t); got != syscall.SIGKILL {
		t.Errorf("ended by signal %d, want SIGKILL", got)
	}
	if err := c.Remove(deadline(t)); err != nil {
		t.Errorf("Remove: %v", err)
	}
}
