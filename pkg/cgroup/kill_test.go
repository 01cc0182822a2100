// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

func TestKill_EndsAllProcessesAndNestedOnes(t *testing.T) {
	for name, makeCgroup := range layouts() {
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, frozen: %t", name, frozen), func(t *testing.T) {
				c := makeCgroup(t)
				nested := nest(t, c, "nested")
				all := []*process{
					start(t, c, "trap '' TERM; read x"), start(t, nested, "read x"), start(t, nested, "read x & read y"),
				}
				for _, c := range []*Cgroup{nested, c} {
					if !frozen {
						break
					}
					if _, err := c.freezer().freeze(deadline(t)); err != nil {
						t.Fatalf("freeze: %v", err)
					}
				}
				kill(t, c)
				for _, p := range all {
					if got := p.signalled(t); got != syscall.SIGKILL {
						t.Errorf("process %d ended by signal %d, want SIGKILL", p.Process.Pid, got)
					}
				}
			})
		}
	}
}

// kill kills c with SIGKILL and looks whether it is empty and thawed.
func kill(tb testing.TB, c *Cgroup) {
	tb.Helper()
	if err := c.Kill(deadline(tb), syscall.SIGKILL); err != nil {
		tb.Fatalf("Kill: %v", err)
	}
	if pids, err := c.Procs(); len(pids) != 0 || err != nil {
		tb.Errorf("processes after Kill: %v, %v, want none", pids, err)
	}
	if !c.Unified() && c.freezer().requested() {
		tb.Error("the cgroup is frozen after Kill")
	}
}

// A container may make cgroups as fast as they are looked at, or whatever else keeps the look from ending.
func TestKill_KillsBeforeItListsProcesses(t *testing.T) {
	c := makeV2(t)
	if !exists(filepath.Join(c.Path(""), "cgroup.kill")) {
		lacking(t, "cgroup.kill", "Linux 5.14")
	}
	p := start(t, c, "read x")
	broken := t.TempDir()
	testx.Write(t, filepath.Join(broken, "cgroup.procs"), "no number")
	err := New(map[string]string{"": c.Path(""), "pids": broken}).Kill(deadline(t), syscall.SIGKILL)
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
	for name, makeCgroup := range layouts() {
		for how, end := range map[string]func(*testing.T, *Cgroup){
			"": func(t *testing.T, c *Cgroup) { t.Helper(); kill(t, c) },
			" one by one": func(t *testing.T, c *Cgroup) {
				t.Helper()
				testx.Eventually(t, "kill", func() bool {
					if err := c.signalFrozen(t.Context(), syscall.SIGKILL); err != nil {
						t.Fatalf("signal: %v", err)
					}
					pids, err := c.Procs()
					return err == nil && len(pids) == 0
				})
			},
		} {
			t.Run(name+how, func(t *testing.T) {
				c := makeCgroup(t)
				script := filepath.Join(t.TempDir(), "offspring")
				testx.Write(t, script, offspring)
				for range 4 {
					start(t, c, "sh "+script+" 0")
				}
				end(t, c)
			})
		}
	}
}

func TestKill_LeavesAFrozenCgroupFrozenWithAnotherSignal(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			p := start(t, c, "read x")
			if _, err := c.freezer().freeze(deadline(t)); err != nil {
				t.Fatalf("freeze: %v", err)
			}
			if err := c.Kill(deadline(t), syscall.SIGTERM); err != nil {
				t.Fatalf("Kill: %v", err)
			}
			if !c.freezer().requested() {
				t.Error("the cgroup was thawed")
			}
			if err := c.Thaw(); err != nil {
				t.Fatalf("thaw: %v", err)
			}
			if got := p.signalled(t); got != syscall.SIGTERM {
				t.Errorf("ended by signal %d once thawed, want SIGTERM", got)
			}
		})
	}
}

func TestKill_ReachesMoreProcessesThanItPinsAtATime(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			shell := start(t, nest(t, c, "nested"), "i=0; while [ $i -lt 150 ]; do sleep 600 & i=$((i+1)); done; wait")
			testx.Eventually(t, "start of all processes", func() bool {
				pids, err := c.Procs()
				return err == nil && len(pids) == 151
			})
			if err := c.Kill(deadline(t), syscall.SIGTERM); err != nil {
				t.Fatalf("Kill: %v", err)
			}
			if got := shell.signalled(t); got != syscall.SIGTERM {
				t.Errorf("the shell ended by signal %d, want SIGTERM", got)
			}
			testx.Eventually(t, "end of all processes", func() bool {
				pids, err := c.Procs()
				return err == nil && len(pids) == 0
			})
			if c.freezer().requested() {
				t.Error("the cgroup is frozen after Kill")
			}
		})
	}
}

func TestKill_SucceedsForACgroupThatIsGone(t *testing.T) {
	for name, makeCgroup := range layouts() {
		t.Run(name, func(t *testing.T) {
			c := makeCgroup(t)
			remove(t, c)
			for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
				if err := c.Kill(deadline(t), sig); err != nil {
					t.Errorf("Kill(%v): %v", sig, err)
				}
			}
		})
	}
}

func TestKill_NamesWhatIsLeftWhenItsContextEnds(t *testing.T) {
	c := makeV1(t)
	start(t, c, "read x")
	// A cgroup above that is frozen is not Kill's to thaw, so its processes cannot die.
	outer := New(map[string]string{"freezer": c.Path("freezer")})
	inner := nest(t, outer, "inner")
	start(t, inner, "read x")
	if _, err := outer.freezer().freeze(deadline(t)); err != nil {
		t.Fatalf("freeze: %v", err)
	}
	defer outer.Thaw() //nolint:errcheck // the cleanup finds out
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := inner.Kill(ctx, syscall.SIGKILL)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 processes [") ||
		!strings.Contains(err.Error(), " (sh, state ") {
		t.Errorf("Kill: %v, want 1 process left, a shell, and the context's error", err)
	}
}

func TestKill_RefusesOtherCgroupsThanAContainers(t *testing.T) {
	roots := map[cgroups.CGMode]map[string]string{
		cgroups.Legacy:  {"pids": "/sys/fs/cgroup/pids"},
		cgroups.Hybrid:  {"pids": "/sys/fs/cgroup/pids", "": "/sys/fs/cgroup/unified"},
		cgroups.Unified: {"": "/sys/fs/cgroup"},
	}[cgroups.Mode()]
	own := t.TempDir() // not the kernel's, so that a broken guard signals nobody
	testx.Write(t, filepath.Join(own, "cgroup.procs"), "")
	testx.Write(t, filepath.Join(own, "nested/cgroup.procs"), strconv.Itoa(os.Getpid())+"\n")
	tests := map[string]map[string]string{"no path": nil, "this process": {"": own}}
	for controller, root := range roots {
		tests["root "+root] = map[string]string{controller: root}
	}
	for name, paths := range tests {
		// Signal 0 reaches nobody, should the guard be broken.
		if err := New(paths).Kill(deadline(t), syscall.Signal(0)); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: Kill: %v, want failed precondition", name, err)
		}
		if err := New(paths).Signal(syscall.Signal(0)); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: Signal: %v, want failed precondition", name, err)
		}
	}
}

func TestKill_WithoutFreezerSignalsRunningProcesses(t *testing.T) {
	c := makeV1(t)
	p := start(t, c, "read x")
	without := New(map[string]string{"pids": c.Path("pids")})
	if err := without.Kill(deadline(t), syscall.SIGKILL); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	if got := p.signalled(t); got != syscall.SIGKILL {
		t.Errorf("ended by signal %d, want SIGKILL", got)
	}
}

func TestSignal_LeavesTheFreezerToOthers(t *testing.T) {
	c := makeV1(t)
	p := start(t, c, "read x")
	freezer := t.TempDir() // not the kernel's, which would not show that it was frozen and thawed
	testx.Write(t, filepath.Join(freezer, "cgroup.procs"), "")
	state := filepath.Join(freezer, "freezer.state")
	testx.Write(t, state, "untouched")
	if err := New(map[string]string{"pids": c.Path("pids"), "freezer": freezer}).Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("Signal: %v", err)
	}
	if got := p.signalled(t); got != syscall.SIGTERM {
		t.Errorf("ended by signal %d, want SIGTERM", got)
	}
	if got, err := os.ReadFile(state); err != nil || string(got) != "untouched" {
		t.Errorf("freezer.state = %q, %v, want it as it was", got, err)
	}
}

func TestAwaitThaw(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "below")
	testx.Must(t, os.Mkdir(below, 0o755))
	write := func(dir, text string) {
		testx.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte(text+"\n"), 0o600))
	}
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
		t.Run(tc.name, func(t *testing.T) {
			write(below, tc.own)
			write(dir, tc.above)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(reason)
			err := tc.group.AwaitThaw(ctx)
			if tc.frozen == "" && err == nil {
				return
			}
			if want := "cgroup " + tc.frozen + " is frozen"; !errors.Is(err, reason) || !strings.Contains(err.Error(), want) {
				t.Errorf("AwaitThaw = %v, want %q", err, tc.frozen)
			}
		})
	}
	write(below, "1")
	done := make(chan error, 1)
	go func() { done <- v2.AwaitThaw(t.Context()) }()
	write(below, "0")
	write(dir, "0")
	if err := <-done; err != nil {
		t.Errorf("AwaitThaw of what is thawed = %v", err)
	}
}

// The descriptors run out once the cgroup is frozen, in the moment in which its processes are listed.
func TestKill_ThawsWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{"cgroup.events": "populated 1\nfrozen 1\n", "cgroup.freeze": "0\n"}
	for name, text := range files {
		testx.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	procs := filepath.Join(dir, "cgroup.procs")
	testx.Must(t, unix.Mkfifo(procs, 0o600))
	sleeper := exec.Command("sleep", "1000")
	testx.Must(t, sleeper.Start())
	defer func() {
		_ = sleeper.Process.Kill() // it lives
		_ = sleeper.Wait()         // that it was killed is no error
	}()
	var limit unix.Rlimit
	testx.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	done := make(chan error, 1)
	go func() { done <- New(map[string]string{"": dir}).Kill(t.Context(), syscall.SIGTERM) }()
	list := func(listed func()) { // answers one who lists the processes
		f, err := os.OpenFile(procs, os.O_WRONLY, 0)
		testx.Must(t, err)
		listed()
		if _, err := fmt.Fprintln(f, sleeper.Process.Pid); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	list(func() {}) // whether there is one
	testx.Eventually(t, "the freeze", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze"))
		return err == nil && strings.HasPrefix(string(text), "1")
	})
	list(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
			t.Error(err)
		}
	})
	err := <-done
	if limitErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); limitErr != nil {
		t.Fatal(limitErr)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("Kill = %v, want that descriptors lack", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); err != nil || !strings.HasPrefix(string(text), "0") {
		t.Errorf("cgroup.freeze = %q, %v, want it thawed", text, err)
	}
}
