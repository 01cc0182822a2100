// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
	_ "sandbox.internal/shim/pkg/ociruntime/initreexec" // this binary is run again as the first stage of a container
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
	// A container waits for the kernel most of its time. A flag of the command line, parsed later, counts more.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
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

// made counts the configurations of containers.
var made atomic.Int32

// newConfig is a container with busybox and nothing else in its root.
func newConfig(tb testing.TB, args ...string) process.Config {
	tb.Helper()
	dir := tb.TempDir()
	bundle := filepath.Join(dir, "bundle")
	rootfs := filepath.Join(bundle, "rootfs")
	for _, sub := range []string{"bin", "proc", "dev", "tmp"} {
		testx.Must(tb, os.MkdirAll(filepath.Join(rootfs, sub), 0o755))
	}
	copyBusybox(tb, filepath.Join(rootfs, "bin/busybox"))
	for _, name := range []string{"sh", "sleep", "cat", "true", "id", "kill"} {
		testx.Must(tb, os.Symlink("busybox", filepath.Join(rootfs, "bin", name)))
	}
	id := "c-" + filepath.Base(filepath.Dir(dir))
	id = strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, id)
	id = fmt.Sprintf("%.60s-%04d", id, made.Add(1)) // names of tests that run at the same time may begin alike
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

// busybox is the static one of this machine.
var busybox = sync.OnceValues(func() ([]byte, error) { return os.ReadFile("/bin/busybox") })

func copyBusybox(tb testing.TB, to string) {
	tb.Helper()
	code, err := busybox()
	testx.Must(tb, err)
	program(tb, to, code)
}

// program makes a file that all may execute.
func program(tb testing.TB, path string, code []byte) {
	tb.Helper()
	testx.Must(tb, os.WriteFile(path, code, 0o755)) //nolint:gosec // a program is executable
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
	testx.Must(tb, err)
	tb.Cleanup(func() { testx.Must(tb, streams.Close()) })
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
	testx.Within(b.t, "init's death", b.dead)
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
	h, own, err := b.Exec(ctx, p, b.config.ExecLimits, streams)
	if err != nil {
		return result{err: err}
	}
	exit := h.Wait()
	if own != nil {
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
	testx.Must(b.t, b.streams.Drain(b.t.Context()))
	text, err := os.ReadFile(strings.TrimPrefix(b.config.IO.Stdout, "file://"))
	testx.Must(b.t, err)
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
// of the cgroup hierarchies, and the file of the launcher with its mount.
var kept = map[string]int{
	"/": 2, "/sys/fs/cgroup": 1, "/containerd-shim-sandbox-v1:launcher": 1,
}

// lacking skips the test and names what it needs, or fails it where SHIM_TEST_REQUIRE lists name.
func lacking(tb testing.TB, name, what string) {
	tb.Helper()
	if promised(name) {
		tb.Fatalf("needs %s, which SHIM_TEST_REQUIRE=%s promises", what, os.Getenv("SHIM_TEST_REQUIRE"))
	}
	tb.Skipf("SKIPPED: needs %s (add %q to SHIM_TEST_REQUIRE to make this a failure)", what, name)
}

func promised(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), name)
}

// slowness is how many times slower than usual the machine is, which
// SHIM_TEST_SLOWNESS says of an emulated one.
func slowness() int {
	n, _ := strconv.Atoi(os.Getenv("SHIM_TEST_SLOWNESS")) // 0 where it says nothing
	return max(n, 1)
}

func unified() bool { return cgroups.Mode() == cgroups.Unified }

// onSystemd reports whether containers are in scopes here, as containerd makes
// them where systemd is pid 1.
func onSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// limited is a container that sleeps and has r.
func limited(t *testing.T, r *specs.LinuxResources) process.Config {
	t.Helper()
	c := newConfig(t, "sleep", "1000")
	c.Spec.Linux.Resources = r
	if onSystemd() {
		c.SystemdCgroup = true
		c.Spec.Linux.CgroupsPath = "system.slice:shim-test:" + c.ID
	}
	return c
}

// disk is a block device of this machine: a throttle needs one that exists.
type disk struct{ major, minor int64 }

func (d disk) String() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

func aDisk(t *testing.T) disk {
	t.Helper()
	names, err := filepath.Glob("/sys/block/*/dev")
	testx.Must(t, err)
	for _, name := range names {
		var d disk
		_, err := fmt.Sscanf(testx.Read(t, name), "%d:%d", &d.major, &d.minor)
		testx.Must(t, err)
		return d
	}
	lacking(t, "disk", "a block device in /sys/block")
	return disk{}
}

// settings are the texts of all control files that resources have, by name.
func settings(t *testing.T, c *cgroup.Cgroup) map[string]string {
	t.Helper()
	names := []string{"memory.min"}
	for _, f := range fields {
		names = append(names, strings.Fields(f.files.here())...)
	}
	texts := controlFiles(t, c, names)
	if len(texts) == 0 {
		t.Fatalf("no control files in %s", c)
	}
	return texts
}

// controlFiles reads files, which may be patterns of path.Match, by name. Files that cannot be read are left out.
func controlFiles(t *testing.T, c *cgroup.Cgroup, patterns []string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range patterns {
		file := c.File(pattern)
		if file == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Dir(file)) // no Glob: names of units have backslashes
		testx.Must(t, err)
		for _, e := range entries {
			matches, err := filepath.Match(pattern, e.Name())
			testx.Must(t, err)
			if !matches {
				continue
			}
			if data, err := os.ReadFile(filepath.Join(filepath.Dir(file), e.Name())); err == nil {
				text := strings.TrimPrefix(strings.TrimSuffix(string(data), "\n"), "oom_kill_disable ")
				if e.Name() == "memory.oom_control" {
					text, _, _ = strings.Cut(text, "\n") // counters follow
				}
				texts[e.Name()] = text
			}
		}
	}
	return texts
}

// doorkeeper holds whoever opens a file, or runs it, as a file system does that does not answer (fanotify(7)).
type doorkeeper struct {
	t     *testing.T
	group *os.File
	held  []int32 // descriptors of the events that wait for an answer
}

// The events that a doorkeeper can hold.
const (
	opening = unix.FAN_OPEN_PERM
	running = unix.FAN_OPEN_EXEC_PERM
)

// holdAt holds whoever does what to the file at path, until letGo or the end of the test.
func holdAt(t *testing.T, path string, what uint64) *doorkeeper {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	testx.Must(t, err)
	k := &doorkeeper{t: t, group: os.NewFile(uintptr(fd), "fanotify")}
	t.Cleanup(k.letGo)
	testx.Must(t, unix.FanotifyMark(fd, unix.FAN_MARK_ADD, what, unix.AT_FDCWD, path))
	return k
}

// wait returns the pid of the process that came next.
func (k *doorkeeper) wait() (pid int) {
	k.t.Helper()
	testx.Eventually(k.t, "a process at the file that is watched", func() bool {
		var b [unix.FAN_EVENT_METADATA_LEN]byte
		conn, err := k.group.SyscallConn()
		testx.Must(k.t, err)
		n := 0
		testx.Must(k.t, conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b[:]) }))
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		testx.Must(k.t, err)
		var event unix.FanotifyEventMetadata
		testx.Must(k.t, binary.Read(bytes.NewReader(b[:n]), binary.NativeEndian, &event))
		k.held = append(k.held, event.Fd)
		pid = int(event.Pid)
		return true
	})
	return pid
}

// letGo lets all go on, now and in future.
func (k *doorkeeper) letGo() {
	for _, fd := range k.held {
		_ = unix.Close(int(fd)) // only read
	}
	k.held = nil
	_ = k.group.Close() // which answers all; a second time it is closed
}

// shimEnv names the file that makes this binary a shim which is going to be
// killed.
const shimEnv = "ENGINE_TEST_SHIM"

// life is what such a shim does.
type life struct {
	Config process.Config
	Stage  string // until when: "created", "running", "paused" or "restored"
}

// shim lives until it is killed, and says on stdout when it has come to its stage.
func shim(file string) int {
	if err := live(file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // ends when the test is gone
	return 0
}

func live(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var l life
	if err := json.Unmarshal(data, &l); err != nil {
		return err
	}
	ctx := context.Background()
	streams, err := stdio.Open(ctx, l.Config.IO, l.Config.IOOwner)
	if err != nil {
		return err
	}
	c, err := New(reaper.New()).Create(ctx, l.Config, streams)
	if err != nil || l.Stage == "created" {
		return err
	}
	if l.Stage == "restored" {
		_, err := c.Restore(ctx, streams)
		return err
	}
	if err := c.Start(); err != nil || l.Stage == "running" {
		return err
	}
	return c.Pause()
}

// command is a program that becomes such a shim.
func (l life) command(t *testing.T, program ...string) *exec.Cmd {
	t.Helper()
	t.Cleanup(func() { wantNothingLeft(t, l.Config) })
	data, err := json.Marshal(l)
	testx.Must(t, err)
	file := note(l.Config, "life.json")
	testx.Write(t, file, string(data))
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Env = append(os.Environ(), shimEnv+"="+file)
	return cmd
}

// killedShim runs a shim up to the stage, or up to the file entered, and kills it.
func killedShim(t *testing.T, l life, entered string) {
	t.Helper()
	defer testReaper.Suspend()() // the shim is a child that only we wait for
	cmd := l.command(t, os.Args[0])
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	testx.Must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	testx.Must(t, err)
	testx.Must(t, cmd.Start())
	if entered == "" {
		if n, err := stdout.Read(make([]byte, 16)); n == 0 {
			t.Errorf("the shim did not come to %q: %v", l.Stage, err)
		}
	} else {
		testx.Eventually(t, entered, func() bool { return testx.Exists(entered) })
	}
	testx.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
}

// members are the processes in the container's cgroup.
func members(tb testing.TB, c process.Config) []int {
	tb.Helper()
	var pids []int
	for _, dir := range cgroupDirs(tb, c) {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		testx.Must(tb, err)
		for field := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(field)
			testx.Must(tb, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func wantDead(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		// The test process adopted it; the reaper collects it soon.
		testx.Eventually(t, fmt.Sprintf("the end of process %d", pid), func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	}
}
