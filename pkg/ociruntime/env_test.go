// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	_ "sandbox.internal/shim/pkg/ociruntime/initreexec" // this binary is run again as the first stage of a container

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// reaper runs beside every test, as it does in the shim.
var testReaper = reaper.New()

// testRuntime is the Runtime of all tests: it keeps the launcher.
var testRuntime = New(testReaper)

// thread holds the namespaces of pods.
var thread *osthread.Thread

func TestMain(m *testing.M) {
	os.Exit(osthread.Main(func(t *osthread.Thread) int {
		thread = t
		return run(m)
	}))
}

func run(m *testing.M) int {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "pkg/ociruntime: the tests run containers and need root")
		return 1
	}
	// A criu first: that of a shim has the environment of both.
	if dir := os.Getenv(criuEnv); dir != "" {
		if err := serveCriu(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if os.Getenv(withoutFirstThreadEnv) != "" {
		return loseFirstThread()
	}
	if file := os.Getenv(shimEnv); file != "" {
		return shim(file)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "prctl(PR_SET_CHILD_SUBREAPER):", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); testReaper.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	defer removeParents()
	warmUp()
	return m.Run()
}

// warmUp makes Go's runtime and pkg/stdio open what they keep open, so that it is no leak.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close() // only the poller matters
	}
	if s, err := stdio.Open(context.Background(), stdio.Config{}, idmap.Owner{}); err == nil {
		_ = s.Close() // nothing was written
	}
	// The reaper, which is on its way, would begin it during the first test.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	signal.Stop(signals)
}

// parent is the cgroup above those of all containers of this test process.
func parent() string { return fmt.Sprintf("shim-test-%d", os.Getpid()) }

func removeParents() {
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		dirs, _ := filepath.Glob(pattern + parent()) // the pattern is well formed
		for _, dir := range dirs {
			_ = os.Remove(dir) // one that is still in use was reported by its test
		}
	}
}

// cgroups are the directories of the container's cgroup that exist.
func cgroupDirs(tb testing.TB, c process.Config) []string {
	tb.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, err := filepath.Glob(pattern + c.Spec.Linux.CgroupsPath)
		if err != nil {
			tb.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}

// newConfig is a container with busybox and nothing else in its root.
func newConfig(tb testing.TB, args ...string) process.Config {
	tb.Helper()
	dir := tb.TempDir()
	bundle := filepath.Join(dir, "bundle")
	rootfs := filepath.Join(bundle, "rootfs")
	for _, sub := range []string{"bin", "proc", "dev", "tmp"} {
		must(tb, os.MkdirAll(filepath.Join(rootfs, sub), 0o755))
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		tb.Fatalf("the tests need a static busybox: %v", err)
	}
	must(tb, os.WriteFile(filepath.Join(rootfs, "bin/busybox"), busybox, 0o755)) //nolint:gosec // a program is executable
	for _, name := range []string{"sh", "sleep", "cat", "true", "id", "kill"} {
		must(tb, os.Symlink("busybox", filepath.Join(rootfs, "bin", name)))
	}
	id := "c-" + filepath.Base(filepath.Dir(dir))
	id = strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, id)
	id = fmt.Sprintf("%.60s-%s", id, filepath.Base(dir))
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}}, {Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}}},
		Linux: &specs.Linux{
			CgroupsPath: "/" + parent() + "/" + id,
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}},
		},
	}
	return process.Config{
		ID: id, Bundle: bundle, Rootfs: rootfs, Spec: spec,
		IO:      stdio.Config{Stdout: "file://" + filepath.Join(dir, "out")},
		Options: process.Options{Root: filepath.Join(dir, "state")},
	}
}

// box is a container with the waiter that each process has.
type box struct {
	process.RuntimeContainer
	t       testing.TB
	config  process.Config
	streams *stdio.Streams
	dead    chan struct{}
	exit    process.Exit // once dead is closed
}

func create(tb testing.TB, config process.Config) *box {
	tb.Helper()
	return createBy(tb, testRuntime, config)
}

func createBy(tb testing.TB, r *Runtime, config process.Config) *box {
	tb.Helper()
	b, err := tryCreateBy(tb, tb.Context(), r, config)
	if err != nil {
		tb.Fatalf("Create: %v", err)
	}
	return b
}

func tryCreate(tb testing.TB, ctx context.Context, config process.Config) (*box, error) { //nolint:revive // tb comes first in a test
	tb.Helper()
	return tryCreateBy(tb, ctx, testRuntime, config)
}

//nolint:revive // as above
func tryCreateBy(tb testing.TB, ctx context.Context, r *Runtime, config process.Config) (*box, error) {
	tb.Helper()
	tb.Cleanup(func() { wantNothingLeft(tb, config) })
	streams, err := stdio.Open(context.Background(), config.IO, config.IOOwner)
	must(tb, err)
	tb.Cleanup(func() { must(tb, streams.Close()) })
	runtime, err := r.Create(ctx, config, streams)
	if err != nil {
		return nil, err
	}
	b := &box{RuntimeContainer: runtime, t: tb, config: config, streams: streams, dead: make(chan struct{})}
	go func() { defer close(b.dead); b.exit = runtime.Init().Wait() }()
	tb.Cleanup(func() {
		_ = b.Init().Signal(syscall.SIGKILL) // dead already is as good
		_ = b.Resume()                       // as above
		b.wait()
		if err := b.Destroy(); err != nil {
			tb.Errorf("Destroy: %v", err)
		}
	})
	return b, nil
}

func (b *box) start() *box {
	b.t.Helper()
	if err := b.Start(); err != nil {
		b.t.Fatalf("Start: %v", err)
	}
	return b
}

func (b *box) wait() process.Exit {
	b.t.Helper()
	within(b.t, "init's death", b.dead)
	return b.exit
}

// result is what an exec left behind.
type result struct {
	status int
	out    string
	err    error
}

func (b *box) exec(ctx context.Context, p *specs.Process) result {
	out, err := os.CreateTemp(filepath.Dir(b.config.Bundle), "exec")
	if err != nil {
		return result{err: err}
	}
	defer out.Close()
	streams, err := stdio.Open(ctx, stdio.Config{Stdout: "file://" + out.Name(), Terminal: p.Terminal}, idmap.Owner{})
	if err != nil {
		return result{err: err}
	}
	defer streams.Close()
	h, err := b.Exec(ctx, p, b.config.ExecLimits, streams)
	if err != nil {
		return result{err: err}
	}
	exit := h.Wait()
	if own, ok := h.(process.CgroupHandle); ok {
		own.Release()
	}
	if err := streams.Drain(ctx); err != nil {
		return result{err: err}
	}
	text, err := os.ReadFile(out.Name())
	return result{status: exit.Status, out: string(text), err: err}
}

func (b *box) output() string {
	b.t.Helper()
	must(b.t, b.streams.Drain(b.t.Context()))
	text, err := os.ReadFile(strings.TrimPrefix(b.config.IO.Stdout, "file://"))
	must(b.t, err)
	return string(text)
}

func command(args ...string) *specs.Process {
	return &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}}
}

func wantNothingLeft(tb testing.TB, c process.Config) {
	tb.Helper()
	if left := cgroupDirs(tb, c); len(left) > 0 {
		tb.Errorf("cgroups left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(c.Root, c.ID)); err == nil {
		tb.Errorf("state directory of %s left", c.ID)
	}
}

// wantNoLeaks compares goroutines, descriptors and children with those at the
// end of the test, after all that is registered later was cleaned up.
func wantNoLeaks(t *testing.T) {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), descriptors()
	t.Cleanup(func() {
		for end := time.Now().Add(5 * time.Second); ; {
			more, open := runtime.NumGoroutine()-goroutines, opened(files, descriptors())
			if more <= 0 && len(open) == 0 {
				return
			}
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines and descriptors %v left\n%s", more, open, stacks[:runtime.Stack(stacks, true)])
				return
			}
			runtime.GC() // a descriptor that only a finalizer closes is not a leak for ever
			runtime.Gosched()
		}
	})
}

// descriptors counts what is open, by what it leads to.
func descriptors() map[string]int {
	open := map[string]int{}
	links, _ := filepath.Glob("/proc/self/fd/*") // the pattern is well formed
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			kind, _, _ := strings.Cut(target, ":[")
			open[kind]++
		}
	}
	return open
}

// opened is what is in after and was not in before, but for what libcontainer
// opens once and keeps.
func opened(before, after map[string]int) []string {
	var more []string
	for target, n := range after {
		if n -= before[target]; n > kept[target] {
			more = append(more, fmt.Sprintf("%s (%d)", target, n))
		}
	}
	return more
}

// kept are a handle of /proc, which shows as the root of an unnamed mount, one
// of the cgroup hierarchies, and the files of the launcher and of inits with
// their mounts.
var kept = map[string]int{
	"/": 3, "/sys/fs/cgroup": 1, "/containerd-shim-sandbox-v1:launcher": 1, "/containerd-shim-sandbox-v1:init": 1,
}

func within(tb testing.TB, what string, done <-chan struct{}) {
	tb.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		tb.Fatalf("%s did not come within a minute", what)
	}
}

func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			tb.Fatalf("%s did not come within a minute", what)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func wantText(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error = %v, which does not say %q", err, w)
		}
	}
}
