// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// deadline returns a context that ends when a test has waited enough.
func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// kill kills c and looks whether it is empty and thawed.
func kill(tb testing.TB, c *Cgroup) {
	tb.Helper()
	if err := c.Kill(deadline(tb)); err != nil {
		tb.Fatalf("Kill: %v", err)
	}
	if pids, err := c.Procs(); len(pids) != 0 || err != nil {
		tb.Errorf("processes after Kill: %v, %v, want none", pids, err)
	}
	if file, _, thawed := c.freezer(); !c.unified && file != "" && testx.Read(tb, file) != thawed+"\n" {
		tb.Error("the cgroup is frozen after Kill")
	}
}

func TestKill_EndsAllProcessesAndNestedOnes(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		eachLayout(t, func(t *testing.T, c *Cgroup) {
			t.Helper()
			nested := nest(t, c, "nested")
			all := []*process{
				start(t, c, "trap '' TERM; read x"), start(t, nested, "read x"), start(t, nested, "read x & read y"),
			}
			if frozen {
				testx.Must(t, errors.Join(nested.freeze(deadline(t)), c.freeze(deadline(t))))
			}
			kill(t, c)
			for _, p := range all {
				if got := p.signalled(t); got != syscall.SIGKILL {
					t.Errorf("frozen: %t: process %d ended by signal %d, want SIGKILL", frozen, p.Process.Pid, got)
				}
			}
			remove(t, c)
			if err := c.Kill(deadline(t)); err != nil {
				t.Errorf("Kill of a cgroup that is gone: %v", err)
			}
		})
	}
}

// A container may make cgroups as fast as they are looked at, or whatever else keeps the look from ending.
func TestKill_KillsBeforeItListsProcesses(t *testing.T) {
	c := makeV2(t)
	if !exists(c.File("cgroup.kill")) {
		testx.Lacking(t, "cgroup.kill", "Linux 5.14")
	}
	p := start(t, c, "read x")
	broken := t.TempDir()
	testx.Write(t, filepath.Join(broken, procsFile), "no number")
	err := New(map[string]string{"": c.Path(""), "pids": broken}).Kill(deadline(t))
	if err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("Kill = %v, want an error of the list in %s", err, broken)
	}
	if got := p.signalled(t); got != syscall.SIGKILL {
		t.Errorf("the process ended by signal %d, want SIGKILL", got)
	}
}

// offspring is a script whose processes never live long: each starts the next and ends. Signalling one process after
// the other does not catch it. It ends by itself after a while, should the test fail to end it.
const offspring = "#!/bin/sh\n[ $1 -lt 30000 ] && sh $0 $(($1 + 1)) &\n"

func TestKill_CatchesProcessesThatFork(t *testing.T) {
	for how, end := range map[string]func(*testing.T, *Cgroup){
		"Kill": func(t *testing.T, c *Cgroup) { t.Helper(); kill(t, c) },
		"one by one": func(t *testing.T, c *Cgroup) {
			t.Helper()
			testx.Eventually(t, "kill", func() bool {
				testx.Must(t, errors.Join(c.freeze(t.Context()), c.Signal(unix.SIGKILL, nil), c.Thaw()))
				pids, err := c.Procs()
				return err == nil && len(pids) == 0
			})
		},
	} {
		t.Run(how, func(t *testing.T) {
			eachLayout(t, func(t *testing.T, c *Cgroup) {
				t.Helper()
				script := filepath.Join(t.TempDir(), "offspring")
				testx.Write(t, script, offspring)
				for range 4 {
					start(t, c, "sh "+script+" 0")
				}
				end(t, c)
			})
		})
	}
}

func TestSignal_ReachesMoreProcessesThanItPinsAtATime(t *testing.T) {
	eachLayout(t, func(t *testing.T, c *Cgroup) {
		t.Helper()
		shell := start(t, nest(t, c, "nested"), "i=0; while [ $i -lt 150 ]; do sleep 600 & i=$((i+1)); done; wait")
		spared := 0
		left := func(n int) func() bool {
			return func() bool {
				pids, err := c.Procs()
				return err == nil && len(pids) == n
			}
		}
		testx.Eventually(t, "start of all processes", left(151))
		testx.Must(t, c.Signal(syscall.SIGTERM, func(pid int) bool {
			if spared == 0 && pid != shell.Process.Pid {
				spared = pid
			}
			return pid != spared
		}))
		if got := shell.signalled(t); got != syscall.SIGTERM {
			t.Errorf("the shell ended by signal %d, want SIGTERM", got)
		}
		testx.Eventually(t, "end of all that match", left(1))
	})
}

func TestKill_NamesWhatIsLeftWhenItsContextEnds(t *testing.T) {
	c := makeV1(t)
	start(t, c, "read x")
	// A cgroup above that is frozen is not Kill's to thaw, so its processes cannot die.
	outer := New(map[string]string{"freezer": c.Path("freezer")})
	inner := nest(t, outer, "inner")
	start(t, inner, "read x")
	testx.Must(t, outer.freeze(deadline(t)))
	defer outer.Thaw() //nolint:errcheck // the cleanup finds out
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	testx.WantError(t, inner.Kill(ctx), context.DeadlineExceeded, "1 processes [", " (sh) ")
}

// The cgroups are not the kernel's, so that a broken guard signals nobody, or get signal 0, which reaches nobody.
func TestKillAndSignal_RefuseOtherCgroupsThanAContainers(t *testing.T) {
	own := t.TempDir()
	testx.Write(t, filepath.Join(own, procsFile), "")
	testx.Write(t, filepath.Join(own, "nested/cgroup.procs"), strconv.Itoa(os.Getpid())+"\n")
	self := New(map[string]string{"": own})
	for what, err := range map[string]error{
		"Kill without a path": New(nil).Kill(deadline(t)),
		"Kill of this one":    self.Kill(deadline(t)),
		"Signal to this one":  self.Signal(0, nil),
	} {
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v, want failed precondition", what, err)
		}
	}
	roots := map[cgroups.CGMode][]string{
		cgroups.Legacy: {"pids"}, cgroups.Hybrid: {"pids", "unified"}, cgroups.Unified: {""},
	}[cgroups.Mode()]
	for _, root := range roots {
		err := New(map[string]string{"pids": filepath.Join("/sys/fs/cgroup", root)}).Signal(0, nil)
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("Signal to the root %s: %v, want failed precondition", root, err)
		}
	}
}

func TestKill_WithoutFreezerSignalsRunningProcesses(t *testing.T) {
	c := makeV1(t)
	p := start(t, c, "read x")
	testx.Must(t, New(map[string]string{"pids": c.Path("pids")}).Kill(deadline(t)))
	if got := p.signalled(t); got != syscall.SIGKILL {
		t.Errorf("ended by signal %d, want SIGKILL", got)
	}
}

func TestAwaitThaw(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	write := func(dir, text string) { testx.Write(t, filepath.Join(dir, "cgroup.freeze"), text+"\n") }
	v1, v2 := New(map[string]string{"freezer": below}), New(map[string]string{"": below})
	reason := errors.New("gave up")
	for _, tc := range []struct {
		name       string
		own, above string
		group      *Cgroup
		frozen     string // empty for none
	}{
		{"frozen", "1", "0", v2, below},
		{"frozen from above", "0", "1", v2, dir},
		{"not frozen", "0", "0", v2, ""},
		{"v1", "1", "1", v1, ""},
	} {
		write(below, tc.own)
		write(dir, tc.above)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(reason)
		err := tc.group.AwaitThaw(ctx)
		if tc.frozen == "" {
			testx.Must(t, err)
			continue
		}
		testx.WantError(t, err, reason, "cgroup "+tc.frozen+" is frozen")
	}
	write(below, "1")
	done := make(chan error, 1)
	go func() { done <- v2.AwaitThaw(t.Context()) }()
	write(below, "0")
	write(dir, "0")
	testx.Must(t, <-done)
}

func TestRemove_RemovesNestedCgroupsOnceTheirLastProcessEnds(t *testing.T) {
	eachLayout(t, func(t *testing.T, c *Cgroup) {
		t.Helper()
		p := start(t, nest(t, nest(t, c, "outer"), "inner"), "read x")
		nest(t, c, "other")
		why := errors.New("out of patience")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
		defer cancel()
		// S, or R if it has not come to read
		testx.WantError(t, c.Remove(ctx), why, "it holds 1 processes ["+strconv.Itoa(p.Process.Pid)+" (sh) ")
		if p.Process.Signal(syscall.Signal(0)) != nil {
			t.Error("Remove killed the process")
		}
		removed := make(chan error, 1)
		go func() { removed <- c.Remove(deadline(t)) }() // ends within the deadline
		testx.Must(t, p.Process.Signal(syscall.SIGKILL))
		testx.Must(t, <-removed)
		for _, dir := range c.dirs {
			if exists(dir) {
				t.Errorf("%s is there after Remove", dir)
			}
		}
		testx.Must(t, c.Remove(deadline(t))) // of a cgroup that is gone
	})
}

// A workload that splits its threads over cgroups (kernel, cgroup-v2.rst, Threads) is killed and removed like any
// other.
func TestKillAndRemove_OfAThreadedCgroup(t *testing.T) {
	c := makeV2(t)
	threads := nest(t, c, "threads")
	testx.Must(t, Write(threads.File("cgroup.type"), "threaded"))
	p := start(t, c, "sleep 1000 & read x")
	testx.Must(t, Write(threads.File("cgroup.threads"), strconv.Itoa(p.Process.Pid)))
	testx.Eventually(t, "the domain lists the shell, whose thread is in the nested cgroup, and its child", func() bool {
		pids, err := c.Procs()
		return err == nil && len(pids) == 2 && slices.Contains(pids, p.Process.Pid)
	})
	kill(t, c)
	if got := p.signalled(t); got != syscall.SIGKILL {
		t.Errorf("ended by signal %d, want SIGKILL", got)
	}
	testx.Must(t, c.Remove(deadline(t)))
}
