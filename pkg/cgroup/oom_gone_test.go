// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

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
				testx.Must(t, Write(filepath.Join(top.Path(""), "cgroup.subtree_control"), "+memory"))
			} else {
				test.want = 0 // nothing counts the kills of a v1 cgroup that is gone
			}
			c, other := nest(t, top, "c"), nest(t, top, "other")
			limitMemory(t, other)
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
			if got := reports.Load(); got != 0 {
				t.Fatalf("%d reports of a counter that is gone, want 0", got)
			}
			for range 2 {
				w.CheckKilled()
				if got := reports.Load(); got != test.want {
					t.Errorf("%d reports, want %d", got, test.want)
				}
			}
		})
	}
}

// Whose limit was met is found by the counters of the cgroups above, which a pod's other containers raise as well.
func TestOOMLimits_NamesTheCgroupWhoseLimitWasMet(t *testing.T) {
	pod := filepath.Join(t.TempDir(), "pod")
	dir := filepath.Join(pod, "c")
	testx.Must(t, os.MkdirAll(dir, 0o755))
	count := func(ofPod, own, withNested string) {
		testx.Write(t, filepath.Join(pod, "memory.events.local"), "oom "+ofPod+"\noom_kill 9\n")
		testx.Write(t, filepath.Join(dir, "memory.events.local"), "oom "+own+"\n")
		testx.Write(t, filepath.Join(dir, memoryEventsFile), "oom "+withNested+"\n")
	}
	count("5", "1", "1")
	l := &oomLimits{dir: dir}
	l.met = l.read()
	for _, tt := range []struct{ ofPod, own, withNested, want string }{
		{"6", "1", "1", pod},
		{"6", "2", "2", dir},
		{"6", "2", "2", NoOOMLimit},
		{"6", "2", "3", dir + "/*"},
		{"7", "3", "4", dir}, // the lower one
	} {
		count(tt.ofPod, tt.own, tt.withNested)
		if got := l.whose(); got != tt.want {
			t.Errorf("%v: limit of %q, want %q", tt, got, tt.want)
		}
	}
	testx.Must(t, os.RemoveAll(dir))
	if got := l.whose(); got != "" {
		t.Errorf("of a cgroup that is gone: %q, want nothing", got)
	}
	if got := (&oomLimits{}).whose(); got != "" {
		t.Errorf("without a cgroup: %q, want nothing", got)
	}
}

// Files in place of the kernel's, which a test can change between two reads.
func TestMemoryEvents_KillsAtMost(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "c")
	testx.Must(t, os.Mkdir(dir, 0o755))
	kills := func(dir, n string) { testx.Write(t, filepath.Join(dir, memoryEventsFile), "oom_kill "+n+"\n") }
	kills(dir, "2")
	alone, err := openMemoryEvents(dir)
	testx.Must(t, err)
	defer alone.close()
	if n, err := alone.killsAtMost(); err == nil {
		t.Errorf("without a cgroup above: %d, want an error", n)
	}
	kills(top, "7")
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
	if flags, err := unix.FcntlInt(s.(*memoryEvents).above.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags of the file above = %#x, %v, want FD_CLOEXEC", flags, err)
	}
}

// A kernel with PREEMPT_RT refuses to signal that a v1 cgroup is out of memory.
func TestOOMWatch_WithoutSignalsSaysSoAndStillCounts(t *testing.T) {
	if dir := os.Getenv("SHIM_TEST_SILENT"); dir != "" {
		c := New(map[string]string{"memory": dir})
		w, reports := watch(t, c)
		start(t, c, hog).wait(t)
		w.Check()
		if got := reports.Load(); got != 1 {
			t.Errorf("%d reports, want 1", got)
		}
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		lacking(t, "strace", "strace")
	}
	c := makeV1(t)
	limitMemory(t, c)
	dir := c.Path("memory")
	cmd := exec.Command(strace, "-f", "-o", os.DevNull, "-P", filepath.Join(dir, "cgroup.event_control"),
		"-e", "inject=write:error=EOPNOTSUPP", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "SHIM_TEST_SILENT="+dir)
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "PREEMPT_RT"); n != 1 || err != nil {
		t.Errorf("%v, and %d lines about the kernel, want 1:\n%s", err, n, out)
	}
}
