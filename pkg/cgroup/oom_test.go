// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"os/exec"
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
	"sandbox.internal/shim/pkg/poll"
)

const (
	memoryLimit = 8 << 20
	hog         = "exec tail /dev/zero" // keeps all of a line that never ends
)

// makeMemory returns a fresh cgroup, of v1 or v2, with a small memory limit and no swap.
func makeMemory(tb testing.TB) *Cgroup {
	tb.Helper()
	c := (*Cgroup)(nil)
	if cgroups.Mode() != cgroups.Unified {
		c = makeV1(tb)
	} else if c = makeV2(tb); !exists(c.File(memoryEventsFile)) {
		testx.Lacking(tb, "cgroup2", "the memory controller in cgroup.subtree_control of the v2 root")
	}
	limitMemory(tb, c, memoryLimit)
	return c
}

func limitMemory(tb testing.TB, c *Cgroup, limit int) {
	tb.Helper()
	file, swap, none := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", strconv.Itoa(limit)
	if c.Unified() {
		file, swap, none = "memory.max", "memory.swap.max", "0"
	}
	testx.Must(tb, Write(c.File(file), strconv.Itoa(limit)))
	if exists(c.File(swap)) {
		testx.Must(tb, Write(c.File(swap), none))
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

func wantReports(tb testing.TB, when string, reports *atomic.Int64, want int64) {
	tb.Helper()
	if got := reports.Load(); got != want {
		tb.Fatalf("%s: %d reports, want %d", when, got, want)
	}
}

func TestOOMWatch_CheckReportsAKillAsSoonAsItsProcessEnded(t *testing.T) {
	for range 10 { // Check and the watch's goroutine race for the report
		c := makeMemory(t)
		w, reports := watch(t, c)
		if got := start(t, c, hog).signalled(t); got != syscall.SIGKILL {
			t.Fatalf("the hog ended by signal %d, want SIGKILL", got)
		}
		w.Check()
		wantReports(t, "after Check", reports, 1)
		w.Check()
		w.Stop()
		wantReports(t, "of one kill", reports, 1)
	}
}

func TestOOMWatch_ReportsKillsOfOthersWhileTheContainerLivesAndTheLastOne(t *testing.T) {
	c := makeMemory(t)
	w, reports := watch(t, c)
	start(t, c, "read x") // the init
	for n := range int64(3) {
		start(t, c, hog).wait(t)
		testx.Eventually(t, "report", func() bool { return reports.Load() == n+1 })
	}
	start(t, c, hog).wait(t)
	w.Stop()
	wantReports(t, "after Stop", reports, 4)
}

func TestOOMWatch_ReportsKillsInNestedCgroups(t *testing.T) {
	c := makeMemory(t)
	if c.Unified() {
		testx.Must(t, Write(c.File("cgroup.subtree_control"), "+memory"))
	}
	w, reports := watch(t, c)
	first, second := nest(t, c, "first"), nest(t, c, "second")
	limitMemory(t, first, memoryLimit/2) // a limit of its own; the processes of second meet that of c
	start(t, first, hog).wait(t)
	w.Check()
	wantReports(t, "after a kill in a nested cgroup", reports, 1)
	start(t, second, hog).wait(t)
	w.Check()
	wantReports(t, "after a kill in a second one", reports, 2)
	remove(t, first) // on v1 its count goes with it, and the next kill must still be seen
	w.Check()
	start(t, second, hog).wait(t)
	w.Check()
	wantReports(t, "after a third kill", reports, 3)
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
	wantReports(t, "without an OOM kill", reports, 0)
	if _, err := c.WatchOOM(func() {}); !errdefs.IsNotFound(err) {
		t.Errorf("WatchOOM of a removed cgroup: %v, want not found", err)
	}
}

// systemd removes a scope as soon as its last process has ended, which is often before the shim has read the counter.
func TestOOMWatch_OfACgroupThatIsGoneBeforeItIsRead(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		before bool // one beside it is killed before the last look
		want   int64
	}{
		"a kill":                 {script: hog, want: 1},
		"none":                   {script: "kill -9 $$"},
		"one in another, before": {script: "kill -9 $$", before: true},
		"one in each":            {script: hog, before: true, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			top := makeMemory(t)
			if top.Unified() {
				testx.Must(t, Write(top.File("cgroup.subtree_control"), "+memory"))
			} else {
				test.want = 0 // nothing counts the kills of a v1 cgroup that is gone
			}
			c, other := nest(t, top, "c"), nest(t, top, "other")
			limitMemory(t, other, memoryLimit)
			w, reports := watch(t, c)
			if test.before {
				start(t, other, hog).wait(t)
				w.Check()
			}
			w.mu.Lock() // so that nobody reads the counter
			start(t, c, test.script).wait(t)
			remove(t, c)
			w.mu.Unlock()
			w.Check()
			wantReports(t, "of a counter that is gone", reports, 0)
			for range 2 {
				w.CheckKilled()
				wantReports(t, "of a process that was killed", reports, test.want)
			}
		})
	}
}

// Files in place of the kernel's, which a test can change between two reads.
func TestMemoryEvents_KillsAtMost(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "c")
	kills := func(dir, n string) { testx.Write(t, filepath.Join(dir, memoryEventsFile), "oom_kill "+n+"\n") }
	kills(dir, "2")
	s, err := openMemoryEvents(dir)
	testx.Must(t, err)
	defer s.close()
	want := func(read func() (uint64, error), n uint64) {
		t.Helper()
		if got, err := read(); err != nil || got != n {
			t.Errorf("%d, %v, want %d", got, err, n)
		}
	}
	want(s.kills, 2)
	if n, err := s.killsAtMost(); err == nil {
		t.Errorf("without a cgroup above: %d, want an error", n)
	}
	kills(top, "7")
	want(s.kills, 2)
	want(s.killsAtMost, 2)
	kills(top, "9")
	want(s.killsAtMost, 4)
	kills(dir, "3")
	want(s.kills, 3)
	want(s.killsAtMost, 3)
	kills(top, "8") // as if a kill were counted here, and not above yet
	want(s.kills, 3)
	kills(top, "9")
	want(s.killsAtMost, 3)
	kills(top, "1") // as if above counted its own kills only
	want(s.kills, 3)
	want(s.killsAtMost, 0)
}

// A kernel with PREEMPT_RT refuses to signal that a v1 cgroup is out of memory.
func TestOOMWatch_WithoutSignalsSaysSoAndStillCounts(t *testing.T) {
	if dir := os.Getenv("SHIM_TEST_SILENT"); dir != "" {
		c := New(map[string]string{"memory": dir})
		w, reports := watch(t, c)
		start(t, c, hog).wait(t)
		w.Check()
		wantReports(t, "without signals", reports, 1)
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		testx.Lacking(t, "strace", "strace")
	}
	c := makeV1(t)
	limitMemory(t, c, memoryLimit)
	cmd := exec.Command(strace, "-f", "-o", os.DevNull, "-P", filepath.Join(c.Path("memory"), "cgroup.event_control"),
		"-e", "inject=write:error=EOPNOTSUPP", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "SHIM_TEST_SILENT="+c.Path("memory"))
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "PREEMPT_RT"); n != 1 || err != nil {
		t.Errorf("%v, and %d lines about the kernel, want 1:\n%s", err, n, out)
	}
}

func TestOOMWatch_LeavesNothingBehind(t *testing.T) {
	c := makeMemory(t)
	watch(t, c) // so that Go's poller has its own descriptors
	files, goroutines := testx.OpenFiles(t), runtime.NumGoroutine()
	for range 20 {
		w, err := c.WatchOOM(func() {})
		testx.Must(t, err)
		w.Check()
		w.Stop()
		w.Stop()
		w.Check()
	}
	if got := testx.OpenFiles(t); got > files {
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
		w, reports := watch(t, New(paths))
		w.Check()
		w.Stop()
		w.Stop()
		wantReports(t, name, reports, 0)
	}
}

func TestOOMWatch_CheckReportsEachIncreaseOnce(t *testing.T) {
	dir := t.TempDir()
	events := func(kills string) {
		testx.Write(t, filepath.Join(dir, memoryEventsFile), "low 0\nhigh 3\nmax 17\noom 9\noom_kill "+kills+"\noom_group_kill 5\n")
	}
	events("4")
	w, reports := watch(t, New(map[string]string{"": dir}))
	for _, step := range []struct {
		kills string
		want  int64
	}{{"4", 0}, {"5", 1}, {"5", 1}, {"9", 2}, {"9", 2}, {"18446744073709551615", 3}} {
		events(step.kills)
		w.Check()
		wantReports(t, "oom_kill "+step.kills, reports, step.want)
	}
	testx.Write(t, filepath.Join(dir, memoryEventsFile), "low 0\n")
	_, err := New(map[string]string{"": dir}).WatchOOM(func() {})
	testx.WantError(t, err, errdefs.ErrNotImplemented, "oom_kill")
}

// The memory controller may not be on v2 here, but cgroup.events announces its changes in the same way.
func TestOOMWatch_WakesUpWhenTheKernelChangesTheFile(t *testing.T) {
	c := makeV2(t)
	file, err := os.Open(c.File("cgroup.events"))
	testx.Must(t, err)
	e := &memoryEvents{File: file}
	defer e.close()
	var populated atomic.Uint64
	fd, events, _ := e.signals()
	stop, err := poll.Each(fd, events, func() {
		if n, err := readNumber(file.Name(), "populated"); err == nil {
			populated.Store(n)
		}
	})
	testx.Must(t, err)
	defer stop()
	for range 3 {
		p := start(t, c, "read x")
		testx.Eventually(t, "wake-up for the first process", func() bool { return populated.Load() == 1 })
		testx.Must(t, p.Process.Signal(os.Kill))
		testx.Eventually(t, "wake-up for the end of the last one", func() bool { return populated.Load() == 0 })
	}
}
