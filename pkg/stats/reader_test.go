// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stats_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/stats"
)

// lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func lacking(tb testing.TB, name, what string) {
	tb.Helper()
	if slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), name) {
		tb.Fatalf("needs %s, which SHIM_TEST_REQUIRE=%s promises", what, os.Getenv("SHIM_TEST_REQUIRE"))
	}
	tb.Skipf("SKIPPED: needs %s (add %q to SHIM_TEST_REQUIRE to make this a failure)", what, name)
}

// makeCgroup makes a cgroup in the given hierarchies, with one process in it, and removes both after the test. The name
// says which test binary it is of.
func makeCgroup(tb testing.TB, paths map[string]string) *cgroup.Cgroup {
	tb.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			tb.Fatal("needs root")
		}
		lacking(tb, "root", "root")
	}
	cmd := exec.Command("/bin/sh", "-c", "read go; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read end")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	for name, root := range paths {
		dir := filepath.Join(root, fmt.Sprintf("shim-test-stats-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { removeDir(tb, dir) })
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			tb.Fatal(err)
		}
		paths[name] = dir
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // the signal is what is wanted
	})
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		tb.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // it used some CPU
		tb.Fatal(err)
	}
	return cgroup.New(paths)
}

// removeDir removes a cgroup. The kernel refuses for a moment after the last process ended.
func removeDir(tb testing.TB, dir string) {
	tb.Helper()
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	var err error
	for range 5000 {
		if err = os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		<-retry.C
	}
	tb.Errorf("cgroup of the test is left: %v", err)
}

func v1Cgroup(tb testing.TB) *cgroup.Cgroup {
	tb.Helper()
	if cgroup.Detect() == cgroup.Unified {
		lacking(tb, "cgroup1", "cgroup v1 hierarchies at /sys/fs/cgroup")
	}
	paths := make(map[string]string)
	for _, name := range []string{"memory", "pids", "cpu", "cpuacct", "blkio", "freezer"} {
		paths[name] = "/sys/fs/cgroup/" + name
	}
	return makeCgroup(tb, paths)
}

// number returns what a file of the cgroup holds.
func number(tb testing.TB, c *cgroup.Cgroup, controller, file string) uint64 {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(c.Path(controller), file))
	if err != nil {
		tb.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func read[M proto.Message](tb testing.TB, r *stats.Reader) M {
	tb.Helper()
	m, err := r.Read()
	if err != nil {
		tb.Fatalf("Read: %v", err)
	}
	got, ok := m.(M)
	if !ok {
		tb.Fatalf("Read returns %T, want %T", m, got)
	}
	return got
}

// steady returns what ours and theirs say about one moment: theirs is the same before and after ours. The kernel settles
// its accounts for a while after the process began to wait.
func steady[A, B any](tb testing.TB, ours func() A, theirs func() B) (A, B) {
	tb.Helper()
	for range 1000 {
		before := theirs()
		got := ours()
		if after := theirs(); cmp.Equal(before, after, protocmp.Transform()) {
			return got, after
		}
	}
	tb.Fatal("the numbers of the cgroup do not come to rest")
	panic("not reached")
}

func open(tb testing.TB, c *cgroup.Cgroup) *stats.Reader {
	tb.Helper()
	r, err := stats.New(c)
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	return r
}

func TestV1MetricsAreWhatTheFilesSay(t *testing.T) {
	c := v1Cgroup(t)
	r := open(t, c)
	m, want := steady(t, func() *v1.Metrics { return read[*v1.Metrics](t, r) }, func() [6]uint64 {
		return [...]uint64{
			number(t, c, "cpuacct", "cpuacct.usage"),
			number(t, c, "pids", "pids.current"),
			number(t, c, "memory", "memory.usage_in_bytes"),
			number(t, c, "memory", "memory.max_usage_in_bytes"),
			number(t, c, "memory", "memory.kmem.usage_in_bytes"),
			number(t, c, "memory", "memory.limit_in_bytes"),
		}
	})
	usage := m.GetMemory().GetUsage()
	got := [...]uint64{
		m.GetCPU().GetUsage().GetTotal(), m.GetPids().GetCurrent(), usage.GetUsage(), usage.GetMax(),
		m.GetMemory().GetKernel().GetUsage(), usage.GetLimit(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CPU usage, pids, memory usage, peak, kernel memory, memory limit (-files +metrics):\n%s", diff)
	}
	if got[0] == 0 {
		t.Error("CPU usage 0 of a process that ran")
	}
	if got := m.GetPids().GetLimit(); got != 0 { // as the runc shim says it
		t.Errorf("limit of pids %d where there is none, want 0", got)
	}
	if m.GetMemory().GetUsage().GetUsage() == 0 || m.GetPids().GetCurrent() != 1 {
		t.Errorf("memory %d, pids %d, want some memory and one pid", m.GetMemory().GetUsage().GetUsage(), m.GetPids().GetCurrent())
	}
	if m.GetMemoryOomControl() == nil || m.GetBlkio() == nil || m.GetCPU().GetThrottling() == nil {
		t.Errorf("a part of the metrics is missing: %v", m)
	}
}

// loader reads as containerd-shim-runc-v2 does: cgroup1.Load once, Stat for each request.
func loader(tb testing.TB, c *cgroup.Cgroup) cgroup1.Cgroup {
	tb.Helper()
	load, err := cgroup1.Load(cgroup1.StaticPath("/" + filepath.Base(c.Path("memory"))))
	if err != nil {
		tb.Fatal(err)
	}
	return load
}

func TestV1MetricsAreAsCompleteAsTheRuncShims(t *testing.T) {
	c := v1Cgroup(t)
	load, r := loader(t, c), open(t, c)
	got, want := steady(t, func() *v1.Metrics { return read[*v1.Metrics](t, r) }, func() *v1.Metrics {
		m, err := load.Stat(cgroup1.IgnoreNotExist)
		if err != nil {
			t.Fatal(err)
		}
		return m
	})
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("metrics (-runc shim +ours):\n%s", diff)
	}
}

func TestV1ReadsThroughAnyMountPointAndOnlyWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "odd mount/pids.current"), "7\n")
	put(t, filepath.Join(dir, "odd mount/pids.max"), "max\n")
	put(t, filepath.Join(dir, "cpu,cpuacct/x/cpu.stat"), "nr_periods 3\nnr_throttled 2\nthrottled_time 1\n")
	c := cgroup.New(map[string]string{
		"pids": dir + "/odd mount", "cpu": dir + "/cpu,cpuacct/x", "memory": dir + "/removed", "name=systemd": dir,
	})
	want := &v1.Metrics{
		Pids: &v1.PidsStat{Current: 7},
		CPU:  &v1.CPUStat{Usage: &v1.CPUUsage{}, Throttling: &v1.Throttle{Periods: 3, ThrottledPeriods: 2, ThrottledTime: 1}},
	}
	if diff := cmp.Diff(want, read[*v1.Metrics](t, open(t, c)), protocmp.Transform()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestV2MetricsAreWhatTheFilesSay(t *testing.T) {
	dir := t.TempDir()
	for file, content := range map[string]string{
		"pids.current": "3\n", "pids.max": "max\n", "memory.current": "4096\n", "memory.max": "max\n", "memory.peak": "8192\n",
		"memory.stat":   "anon 11\nfile 12\n",
		"memory.events": "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\noom_group_kill 0\n",
		"cpu.stat":      "usage_usec 30\nuser_usec 20\nsystem_usec 10\n",
		"io.stat":       "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n",
	} {
		put(t, filepath.Join(dir, file), content)
	}
	m := read[*v2.Metrics](t, open(t, cgroup.New(map[string]string{"": dir})))
	for _, tt := range []struct {
		name string
		got  uint64
		want uint64
	}{
		{"pids", m.GetPids().GetCurrent(), 3},
		{"unlimited pids", m.GetPids().GetLimit(), math.MaxUint64},
		{"memory usage", m.GetMemory().GetUsage(), 4096},
		{"memory peak", m.GetMemory().GetMaxUsage(), 8192},
		{"unlimited memory", m.GetMemory().GetUsageLimit(), math.MaxUint64},
		{"anonymous memory", m.GetMemory().GetAnon(), 11},
		{"OOM kills", m.GetMemoryEvents().GetOomKill(), 1},
		{"CPU usage", m.GetCPU().GetUsageUsec(), 30},
		{"bytes written", m.GetIo().GetUsage()[0].GetWbytes(), 2},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

func TestV2MetricsOfTheKernel(t *testing.T) {
	root := map[cgroup.Mode]string{cgroup.Unified: "/sys/fs/cgroup", cgroup.Hybrid: "/sys/fs/cgroup/unified"}[cgroup.Detect()]
	if root == "" {
		lacking(t, "cgroup2", "a cgroup v2 hierarchy")
	}
	m := read[*v2.Metrics](t, open(t, makeCgroup(t, map[string]string{"": root})))
	if got := m.GetCPU().GetUsageUsec(); got == 0 { // counted without any controller
		t.Errorf("CPU usage 0, want some: %v", m)
	}
	if cgroup.Detect() != cgroup.Unified {
		lacking(t, "cgroup2", "the memory and pids controllers on cgroup v2; CPU usage was tested")
	}
	if m.GetPids().GetCurrent() != 1 || m.GetMemory().GetUsage() == 0 {
		t.Errorf("pids %d, memory %d, want 1 and some", m.GetPids().GetCurrent(), m.GetMemory().GetUsage())
	}
}

func TestACgroupThatIsGoneIsNotFound(t *testing.T) {
	for name, controller := range map[string]string{"v1": "pids", "v2": ""} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "x")
			c := cgroup.New(map[string]string{controller: dir})
			if _, err := stats.New(c); !errdefs.IsNotFound(err) {
				t.Errorf("New: %v, want not found", err)
			}
			put(t, filepath.Join(dir, "pids.current"), "1\n")
			put(t, filepath.Join(dir, "pids.max"), "1\n")
			r := open(t, c)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if m, err := r.Read(); m != nil || !errdefs.IsNotFound(err) {
				t.Errorf("Read: %v, %v, want not found", m, err)
			}
		})
	}
}

func TestAFileThatCannotBeUnderstoodIsAnError(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pids.current"), "many\n")
	_, err := open(t, cgroup.New(map[string]string{"pids": dir})).Read()
	if err == nil || errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "pids") {
		t.Errorf("Read: %v, want an error that names the controller", err)
	}
}

func TestReaderMayBeSharedByGoroutines(t *testing.T) {
	r := open(t, v1Cgroup(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.Read(); err != nil {
				t.Errorf("Read: %v", err)
			}
		})
	}
	wg.Wait()
}

func put(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkReadV1(b *testing.B) {
	r := open(b, v1Cgroup(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Read(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewV1(b *testing.B) {
	c := v1Cgroup(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := stats.New(c); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRuncShimV1 is what the runc shim does for each request, to compare with.
func BenchmarkRuncShimV1(b *testing.B) {
	load := loader(b, v1Cgroup(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := load.Stat(cgroup1.IgnoreNotExist); err != nil {
			b.Fatal(err)
		}
	}
}
