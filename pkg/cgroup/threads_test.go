// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

// threaded makes a cgroup a threaded one.
func threaded(t *testing.T, c *Cgroup) *Cgroup {
	t.Helper()
	if err := Write(filepath.Join(c.paths[""], "cgroup.type"), "threaded"); err != nil {
		t.Fatal(err)
	}
	return c
}

// A container below a threaded domain is in a cgroup that lists threads alone.
func TestKillAndRemove_InAThreadedCgroup(t *testing.T) {
	if os.Getenv("SHIM_TEST_THREADS") != "" {
		_, _ = os.Stdin.Read(make([]byte, 1)) // a process with many threads, until it is killed
		return
	}
	domain := makeV2(t)
	c := threaded(t, nest(t, domain, "container"))
	nested := threaded(t, nest(t, c, "nested"))
	nest(t, c, "unused") // into which nothing can be put
	p := start(t, c, "SHIM_TEST_THREADS=1 exec "+os.Args[0]+" -test.run '^"+t.Name()+"$'")
	threads := func() []int {
		text, err := os.ReadFile(c.File("cgroup.threads"))
		if err != nil {
			t.Fatal(err)
		}
		ids, err := parseProcs(nil, text)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	eventually(t, "many threads", func() bool { return len(threads()) > 3 })
	other := start(t, nested, "read x")
	for _, thread := range threads()[1:3] {
		if err := Write(filepath.Join(nested.Path(""), "cgroup.threads"), strconv.Itoa(thread)); err != nil {
			t.Fatal(err)
		}
	}
	outside := start(t, threaded(t, nest(t, domain, "other")), "read x")
	want := []int{p.Process.Pid, other.Process.Pid}
	slices.Sort(want)
	for _, one := range []*Cgroup{c, nested} {
		if pids, err := one.Procs(); err != nil || !slices.Equal(pids, want) {
			t.Fatalf("Procs of %s = %v, %v, want %v", one, pids, err, want)
		}
	}
	if err := c.Contains(other.Process.Pid, -1); err != nil {
		t.Error(err)
	}
	if err := c.Contains(outside.Process.Pid, -1); !errdefs.IsPermissionDenied(err) {
		t.Errorf("Contains of a process of the domain outside: %v, want permission denied", err)
	}
	kill(t, c)
	for _, one := range []*process{p, other} {
		if got := one.signalled(t); got != syscall.SIGKILL {
			t.Errorf("ended by signal %d, want SIGKILL", got)
		}
	}
	if err := c.Remove(deadline(t)); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if err := outside.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process of the domain, outside of the cgroup that was killed: %v", err)
	}
}

// An exec with a cgroup of its own can be started beside the threaded cgroups of a container.
func TestMakeChild_InAThreadedSubtree(t *testing.T) {
	for name, makeParent := range map[string]func() *Cgroup{
		"beside a threaded cgroup": func() *Cgroup { c := makeV2(t); threaded(t, nest(t, c, "threads")); return c },
		"in a threaded cgroup":     func() *Cgroup { return threaded(t, nest(t, makeV2(t), "container")) },
		"elsewhere":                func() *Cgroup { return makeV2(t) },
	} {
		t.Run(name, func(t *testing.T) {
			c := makeParent()
			init := start(t, c, "read x")
			before, err := typeOf(c.Path(""))
			if err != nil {
				t.Fatal(err)
			}
			child, err := c.MakeChild("exec-1")
			if err != nil {
				t.Fatal(err)
			}
			p := start(t, child, "sleep 1000 & read x")
			eventually(t, "list of both", func() bool {
				pids, err := child.Procs()
				return err == nil && len(pids) == 2 && slices.Contains(pids, p.Process.Pid)
			})
			kill(t, child)
			if got := p.signalled(t); got != syscall.SIGKILL {
				t.Errorf("ended by signal %d, want SIGKILL", got)
			}
			if err := child.Remove(deadline(t)); err != nil {
				t.Errorf("Remove: %v", err)
			}
			if err := init.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("a process of the parent: %v, want it to live", err)
			}
			if after, err := typeOf(c.Path("")); after != before {
				t.Errorf("cgroup.type of the parent becomes %q, %v, want %q", after, err, before)
			}
		})
	}
}

func TestRefuseProcesses_InAThreadedCgroup(t *testing.T) {
	c := makeV2(t)
	nested := threaded(t, nest(t, c, "threads"))
	for _, one := range []*Cgroup{c, nested} {
		if err := one.RefuseProcesses(); err != nil {
			t.Errorf("without processes: %v", err)
		}
	}
	p := start(t, nested, "read x")
	for _, one := range []*Cgroup{c, nested} {
		err := one.RefuseProcesses()
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), strconv.Itoa(p.Process.Pid)) {
			t.Errorf("with a process: %v, want failed precondition, and the process", err)
		}
	}
	kill(t, nested)
	p.signalled(t)
}

func TestDelegate_RefusesAThreadedCgroup(t *testing.T) {
	c := threaded(t, nest(t, makeV2(t), "container"))
	err := c.Delegate("init")
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `cgroup.type is "threaded"`) {
		t.Errorf("Delegate = %v, want failed precondition and the type", err)
	}
	if exists(filepath.Join(c.Path(""), "init")) {
		t.Error("a cgroup is left")
	}
}

func FuzzOwner(f *testing.F) {
	f.Add([]byte("Name:\tx\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t77\nNgid:\t0\nPid:\t78\n"), uint16(77))
	f.Add([]byte("Name:\tTgid:\t5\nTgid:\t0\n"), uint16(0))
	f.Add([]byte("Name:\tx\nTgid:\t-1\n"), uint16(1))
	f.Fuzz(func(t *testing.T, status []byte, pid uint16) {
		if got, err := owner(status); err == nil && got < 1 {
			t.Errorf("owner(%q) = %d", status, got)
		}
		line := "Name:\tTgid:\nTgid:\t" + strconv.Itoa(int(pid)) + "\n"
		if got, err := owner(append([]byte(line), status...)); pid > 0 && (err != nil || got != int(pid)) {
			t.Errorf("owner(%q…) = %d, %v, want %d", line, got, err, pid)
		}
	})
}
