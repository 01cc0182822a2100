// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// chains are cgroups nested in one another whose path is longer than the kernel takes (PATH_MAX, 4096 bytes).
var chains = map[string][]string{
	"many":       slices.Repeat([]string{"directory"}, 420),
	"long names": slices.Repeat([]string{strings.Repeat("n", unix.NAME_MAX)}, 20),
}

// deepen nests cgroups in each hierarchy of c, as a container does: from one directory to the next. It returns the
// innermost directories. The end of the test takes down what is left, by itself: it is not to depend on what is tested.
func deepen(tb testing.TB, c *Cgroup, names []string) []*os.File {
	tb.Helper()
	var innermost []*os.File
	for _, top := range c.dirs {
		here, err := os.Open(top)
		testx.Must(tb, err)
		for i, name := range names {
			if err := unix.Mkdirat(int(here.Fd()), name, 0o755); err != nil {
				tb.Fatalf("make a cgroup at depth %d of %s: %v", i+1, top, err)
			}
			below, err := os.Open(filepath.Join(pathOf(here), name))
			testx.Must(tb, err)
			_ = here.Close() // opened for reading only, as all below
			here = below
		}
		innermost = append(innermost, here)
	}
	tb.Cleanup(func() {
		for _, here := range innermost {
			for _, name := range slices.Backward(names) {
				above, err := os.Open(pathOf(here) + "/..")
				testx.Must(tb, err)
				_ = here.Close()
				here = above
				testx.Eventually(tb, "remove a nested cgroup", func() bool {
					err := unix.Unlinkat(int(here.Fd()), name, unix.AT_REMOVEDIR)
					return err == nil || errors.Is(err, unix.ENOENT)
				})
			}
			_ = here.Close()
		}
	})
	return innermost
}

func TestProcsKillAndRemove_ReachDeeperThanAPathCanName(t *testing.T) {
	for layout, makeCgroup := range layouts {
		for kind, names := range chains {
			t.Run(layout+" "+kind, func(t *testing.T) {
				c := makeCgroup(t)
				p := startIn(t, c, deepen(t, c, names), "read x")
				if pids, err := c.Procs(); err != nil || !slices.Equal(pids, []int{p.Process.Pid}) {
					t.Errorf("Procs = %v, %v, want %d", pids, err, p.Process.Pid)
				}
				kill(t, c)
				if got := p.signalled(t); got != syscall.SIGKILL {
					t.Errorf("the process ended by signal %d, want SIGKILL", got)
				}
				if err := c.Remove(deadline(t)); err != nil {
					t.Fatalf("Remove: %v", err)
				}
				if c.Exists() {
					t.Errorf("%s is there after Remove", c)
				}
			})
		}
	}
}

// A process in a frozen cgroup cannot die on v1, however deep it is and whoever froze it.
func TestKill_ThawsDeeperThanAPathCanName(t *testing.T) {
	c := makeV1(t)
	innermost := deepen(t, c, chains["long names"])
	p := startIn(t, c, innermost, "read x")
	state := pathOf(innermost[slices.Index(c.dirs, c.Path("freezer"))]) + "/freezer.state"
	t.Cleanup(func() { _ = Write(state, "THAWED") }) // gone, as it should be, or left for the other clean-ups
	testx.Must(t, Write(state, "FROZEN"))
	kill(t, c)
	if got := p.signalled(t); got != syscall.SIGKILL {
		t.Errorf("the process ended by signal %d, want SIGKILL", got)
	}
}

func TestOOMWatch_CountsInCgroupsDeeperThanAPathCanName(t *testing.T) {
	c := makeMemory(t)
	if c.unified {
		t.Skip("SKIPPED: needs cgroup v1, where each cgroup has a counter of its own")
	}
	deep := deepen(t, c, chains["long names"])
	w, reports := watch(t, c)
	startIn(t, c, deep, hog).wait(t)
	w.Check()
	if got := reports.Load(); got != 1 {
		t.Errorf("%d reports of a kill, want 1", got)
	}
}

// However deep and wide a container nests cgroups, a walk through them is not to take the descriptors of its shim.
func TestWalk_HasFewDescriptorsOpenAtATime(t *testing.T) {
	c := makeV1(t)
	deepen(t, c, chains["many"])
	for i := range 50 {
		nest(t, c, "wide"+strconv.Itoa(i))
	}
	const few = 3 // the directory it is in, the next one, and a file there
	before := testx.OpenFiles(t)
	visited, most := 0, 0
	err := walk(c.Path("pids"), func(string) error {
		visited++
		most = max(most, testx.OpenFiles(t))
		return nil
	}, nil)
	if want := 1 + len(chains["many"]) + 50; err != nil || visited != want {
		t.Errorf("walk visited %d cgroups, %v, want %d", visited, err, want)
	}
	if most > before+few {
		t.Errorf("%d descriptors open during the walk, %d before, want %d more at most", most, before, few)
	}
	if after := testx.OpenFiles(t); after > before { // garbage of other tests may have been closed
		t.Errorf("%d descriptors open after the walk, %d before", after, before)
	}
}

// The kernel refuses a line break in the name of a cgroup, and nothing else that a file's name may have.
func TestWalk_FindsCgroupsOfAnyName(t *testing.T) {
	names := []string{"...", " ", "-rf", "%s%n", "\x1b[2J", "\xff\xfe", "a:b", "*", "0", "..a", strings.Repeat("…", 85)}
	eachLayout(t, func(t *testing.T, c *Cgroup) {
		t.Helper()
		var want []int
		for _, name := range names {
			want = append(want, start(t, nest(t, nest(t, c, name), name), "read x").Process.Pid)
		}
		slices.Sort(want)
		if pids, err := c.Procs(); err != nil || !slices.Equal(pids, want) {
			t.Errorf("Procs = %v, %v, want %v", pids, err, want)
		}
		kill(t, c)
		if err := c.Remove(deadline(t)); err != nil {
			t.Errorf("Remove: %v", err)
		}
	})
}

// What a container nests comes and goes while it is walked: neither the cgroup that a walk is in nor those above it are
// there still when it goes on.
func TestWalk_GoesOnWhereItsWayIsRemoved(t *testing.T) {
	c := makeV1(t)
	dir := c.Path("pids")
	names := []string{"a", "b", "c", "d"}
	deep := filepath.Join(append([]string{dir}, names...)...)
	testx.Must(t, os.MkdirAll(deep, 0o755))
	for _, other := range []string{"0", "z"} { // before and after, whichever the order
		testx.Must(t, os.Mkdir(filepath.Join(dir, other), 0o755))
	}
	var visited []string
	err := walk(dir, func(here string) error {
		where, err := os.Readlink(here)
		name := filepath.Base(where)
		visited = append(visited, name)
		if name == "c" {
			for at := deep; at != dir; at = filepath.Dir(at) {
				if err := os.Remove(at); err != nil {
					t.Error(err)
				}
			}
		}
		return err
	}, nil)
	slices.Sort(visited)
	if want := []string{"0", "a", "b", "c", filepath.Base(dir), "z"}; err != nil || !slices.Equal(visited, want) {
		t.Errorf("walk visited %q, %v, want %q", visited, err, want)
	}
	if err := walk(filepath.Join(dir, "gone"), nil, nil); !IsGone(err) {
		t.Errorf("walk of a cgroup that is gone = %v, want that", err)
	}
}
