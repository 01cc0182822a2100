// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

const (
	memoryLimit = 8 << 20
	hog         = "exec tail /dev/zero" // keeps all of a line that never ends
)

// makeMemory returns a fresh cgroup, of v1 or v2, with a small memory limit and no swap.
func makeMemory(tb testing.TB) *Cgroup {
	tb.Helper()
	if cgroups.Mode() != cgroups.Unified {
		c := makeV1(tb)
		limitMemory(tb, c)
		return c
	}
	c := makeV2(tb)
	if !exists(filepath.Join(c.Path(""), "memory.events")) {
		lacking(tb, "cgroup2", "the memory controller in cgroup.subtree_control of the v2 root")
	}
	limitMemory(tb, c)
	return c
}

func limitMemory(tb testing.TB, c *Cgroup) {
	tb.Helper()
	limit, swap, none := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", strconv.Itoa(memoryLimit)
	if c.Unified() {
		limit, swap, none = "memory.max", "memory.swap.max", "0"
	}
	testx.Must(tb, Write(filepath.Join(c.Path("memory"), limit), strconv.Itoa(memoryLimit)))
	if path := filepath.Join(c.Path("memory"), swap); exists(path) {
		testx.Must(tb, Write(path, none))
	}
}

// watch watches c and returns the watch with the number of its reports.
func watch(tb testing.TB, c *Cgroup) (*OOMWatch, *atomic.Int64) {
	tb.Helper()
	var reports atomic.Int64
	w, err := c.WatchOOM(func() { reports.Add(1) })
	if err != nil {
		tb.Fatalf("WatchOOM: %v", err)
	}
	tb.Cleanup(w.Stop)
	return w, &reports
}

func TestOOMWatch_CheckReportsAKillAsSoonAsItsProcessEnded(t *testing.T) {
	for range 10 { // Check and the watch's goroutine race for the report
		c := makeMemory(t)
		w, reports := watch(t, c)
		p := start(t, c, hog)
		if got := p.signalled(t); got != syscall.SIGKILL {
			t.Fatalf("the hog ended by signal %d, want SIGKILL", got)
		}
		w.Check()
		if got := reports.Load(); got != 1 {
			t.Fatalf("%d reports after Check, want 1", got)
		}
		w.Check()
		w.Stop()
		if got := reports.Load(); got != 1 {
			t.Fatalf("%d reports of one kill, want 1", got)
		}
	}
}

func TestOOMWatch_ReportsKillsOfOthersWhileTheContainerLives(t *testing.T) {
	c := makeMemory(t)
	_, reports := watch(t, c)
	start(t, c, "read x") // the init
	for n := range int64(3) {
		start(t, c, hog).wait(t)
		testx.Eventually(t, "report", func() bool { return reports.Load() == n+1 })
	}
}

func TestOOMWatch_StopReportsTheLastKill(t *testing.T) {
	c := makeMemory(t)
	w, reports := watch(t, c)
	start(t, c, hog).wait(t)
	w.Stop()
	if got := reports.Load(); got != 1 {
		t.Errorf("%d reports after Stop, want 1", got)
	}
}

func TestOOMWatch_ReportsKillsInNestedCgroups(t *testing.T) {
	c := makeMemory(t)
	if c.Unified() {
		testx.Must(t, Write(filepath.Join(c.Path(""), "cgroup.subtree_control"), "+memory"))
	}
	w, reports := watch(t, c)
	wantLimit := func(want string) {
		t.Helper()
		if got := w.Limit(); c.Unified() && got != want || !c.Unified() && got != "" { // v1 does not tell
			t.Errorf("the kill was for the limit of %q, want %q", got, want)
		}
	}
	first, second := nest(t, c, "first"), nest(t, c, "second")
	limitMemory(t, first) // first has a limit of its own; the processes of second meet that of c
	if c.Unified() {      // c, with the memory of both, must not meet its own before
		testx.Must(t, Write(filepath.Join(first.Path(""), "memory.max"), strconv.Itoa(memoryLimit/2)))
	}
	start(t, first, hog).wait(t)
	w.Check()
	if got := reports.Load(); got != 1 {
		t.Errorf("%d reports after a kill in a nested cgroup, want 1", got)
	}
	wantLimit(filepath.Join(c.Path("memory"), "*"))
	start(t, second, hog).wait(t)
	w.Check()
	wantLimit(c.Path("memory"))
	if got := reports.Load(); got != 2 {
		t.Errorf("%d reports after a kill in a second one, want 2", got)
	}
	remove(t, first) // on v1 its count goes with it, and the next kill must still be seen
	w.Check()
	start(t, second, hog).wait(t)
	w.Check()
	if got := reports.Load(); got != 3 {
		t.Errorf("%d reports after a third kill, want 3", got)
	}
}

func TestOOMWatch_OfACgroupThatIsRemoved(t *testing.T) {
	c := makeMemory(t)
	w, reports := watch(t, c)
	p := start(t, c, "read x")
	kill(t, c) // a kill by somebody is none for lack of memory
	p.wait(t)
	remove(t, c) // on v1 this signals the eventfd
	w.Check()
	w.Stop()
	if got := reports.Load(); got != 0 {
		t.Errorf("%d reports without an OOM kill, want 0", got)
	}
	if _, err := c.WatchOOM(func() {}); !errdefs.IsNotFound(err) {
		t.Errorf("WatchOOM of a removed cgroup: %v, want not found", err)
	}
}

func TestOOMWatch_LeavesNothingBehind(t *testing.T) {
	c := makeMemory(t)
	watch(t, c) // so that Go's poller has its own descriptors
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	for range 20 {
		w, err := c.WatchOOM(func() {})
		if err != nil {
			t.Fatalf("WatchOOM: %v", err)
		}
		w.Check()
		w.Stop()
		w.Stop()
		w.Check()
	}
	if got := openFiles(t); got > files {
		t.Errorf("%d open files after 20 watches, want the %d from before", got, files)
	}
	// A goroutine is counted for a moment longer than it holds up Stop.
	testx.Eventually(t, "end of the goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func TestOOMWatch_DoesNothingWithoutMemoryController(t *testing.T) {
	dir := t.TempDir()
	for name, paths := range map[string]map[string]string{
		"v1 without memory hierarchy":     {"pids": dir},
		"v1 hierarchy without the file":   {"memory": dir},
		"v2 that does not control memory": {"": dir},
	} {
		t.Run(name, func(t *testing.T) {
			w, reports := watch(t, New(paths))
			w.Check()
			w.Stop()
			w.Stop()
			if got := reports.Load(); got != 0 {
				t.Errorf("%d reports", got)
			}
		})
	}
}

func TestOOMWatch_CheckReportsEachIncreaseOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "memory.events")
	events := func(kills string) string {
		return "low 0\nhigh 3\nmax 17\noom 9\noom_kill " + kills + "\noom_group_kill 5\n"
	}
	testx.Write(t, file, events("4"))
	w, reports := watch(t, New(map[string]string{"": dir}))
	for _, step := range []struct {
		kills string
		want  int64
	}{{"4", 0}, {"5", 1}, {"5", 1}, {"9", 2}, {"9", 2}, {"18446744073709551615", 3}} {
		testx.Write(t, file, events(step.kills))
		w.Check()
		if got := reports.Load(); got != step.want {
			t.Errorf("%d reports at oom_kill %s, want %d", got, step.kills, step.want)
		}
	}
}

func TestOOMWatch_NamesTheMissingLine(t *testing.T) {
	dir := t.TempDir()
	testx.Write(t, filepath.Join(dir, "memory.events"), "low 0\n")
	_, err := New(map[string]string{"": dir}).WatchOOM(func() {})
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "oom_kill") {
		t.Errorf("WatchOOM: %v, want not implemented and the name of the line", err)
	}
}

// What could not be read of nested cgroups is not what was never counted. The order of the two is the directory's.
func TestOOMControl_CountsNoKillTwiceAfterAnError(t *testing.T) {
	const name = "memory.oom_control"
	counts := map[string]string{"first": "oom_kill 3\n", "second": "oom_kill 0\n"}
	for broken := range counts {
		t.Run(broken, func(t *testing.T) {
			top := t.TempDir()
			testx.Write(t, filepath.Join(top, name), "oom_kill 0\n")
			for child, text := range counts {
				testx.Must(t, os.Mkdir(filepath.Join(top, child), 0o755))
				testx.Write(t, filepath.Join(top, child, name), text)
			}
			file, err := os.Open(filepath.Join(top, name))
			testx.Must(t, err)
			defer func() { _ = file.Close() }() // opened for reading only
			c := &oomControl{dir: top, file: file}
			want := func(when string) {
				t.Helper()
				if n, err := c.kills(); err != nil || n != 3 {
					t.Errorf("%s kills = %d, %v, want 3", when, n, err)
				}
			}
			want("at first")
			path := filepath.Join(top, broken, name)
			if err := errors.Join(os.Remove(path), os.Symlink("nowhere", path)); err != nil { // ELOOP by O_NOFOLLOW
				t.Fatal(err)
			}
			want("while a file cannot be opened")
			if n, err := (&oomControl{dir: top, file: file}).kills(); err != nil || n > 3 {
				t.Errorf("kills that begin then = %d, %v, want 3 at most", n, err)
			}
			testx.Must(t, os.Remove(path))
			testx.Write(t, path, counts[broken])
			want("after that")
		})
	}
}

// The memory controller may not be on v2 here, but cgroup.events announces its changes in the same way.
func TestOOMWatch_WakesUpWhenTheKernelChangesTheFile(t *testing.T) {
	c := makeV2(t)
	file, err := os.Open(c.File("cgroup.events"))
	testx.Must(t, err)
	e := &memoryEvents{File: file}
	var populated atomic.Uint64
	ended := make(chan struct{})
	go func() { // ends with close below
		defer close(ended)
		e.await(func() {
			if n, err := numberIn(file, "populated"); err == nil {
				populated.Store(n)
			}
		})
	}()
	for range 3 {
		p := start(t, c, "read x")
		testx.Eventually(t, "wake-up for the first process", func() bool { return populated.Load() == 1 })
		testx.Must(t, p.Process.Signal(os.Kill))
		testx.Eventually(t, "wake-up for the end of the last one", func() bool { return populated.Load() == 0 })
	}
	e.close()
	<-ended
}
