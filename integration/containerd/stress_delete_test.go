// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// deaf is a reader of output that opens the fifos and reads nothing.
type deaf struct {
	*cio.FIFOSet
	open []*os.File
}

func (d *deaf) Config() cio.Config { return d.FIFOSet.Config }
func (d *deaf) Cancel()            {}
func (d *deaf) Wait()              {}
func (d *deaf) Close() error {
	var errs []error
	for _, f := range d.open {
		errs = append(errs, f.Close())
	}
	d.open = nil
	return errors.Join(append(errs, d.FIFOSet.Close())...)
}

func (e *env) deaf(id string) (cio.IO, error) {
	fifos, err := cio.NewFIFOSetInDir(e.containerd.Fifos, id, false)
	if err != nil {
		return nil, err
	}
	fifos.Stdin = ""
	d := &deaf{FIFOSet: fifos}
	for _, path := range []string{fifos.Stdout, fifos.Stderr} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		d.open = append(d.open, f)
	}
	return d, nil
}

// bundle is the directory of a container.
func (e *env) bundle(id string) string {
	return filepath.Join(e.containerd.State, "io.containerd.runtime.v2.task", e.namespace, id)
}

// inOneShim puts containers into one shim.
var inOneShim = oci.WithAnnotations(map[string]string{"io.containerd.runc.v2.group": "together"})

// containerd#13377, for a reader that is there and does not read.
func TestDelete_StalledReaderDelaysOnlyItsContainer(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits")
	e := newEnv(t)
	other := e.run("other", config{opts: with(inOneShim)}, "sleep", "1000")
	container, err := e.client.NewContainer(e.ctx, "c1",
		append(e.plain("c1"), clientSpec(e, inOneShim, oci.WithProcessArgs("yes")))...)
	e.must(err, "container")
	e.Cleanup(func() { e.remove(container) })
	created, err := container.NewTask(e.ctx, e.deaf)
	e.must(err, "task")
	c := &process{Process: created, e: e, err: &harness.Buffer{}}
	c.exited, err = created.Wait(e.ctx)
	e.must(err, "wait")
	e.must(created.Start(e.ctx), "start")
	if shims := harness.Shims(e.namespace, ""); len(shims) != 1 {
		t.Fatalf("shims = %v, want one for both containers", shims)
	}
	harness.Eventually(t, "container blocked in a write", func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", created.Pid()))
		if err == nil && strings.Contains(string(text), "pipe_write") {
			return nil
		}
		return fmt.Errorf("it waits in %q (%w)", text, err)
	})
	e.must(created.Kill(e.ctx, syscall.SIGKILL), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	var deleted atomic.Bool
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		_, err := created.Delete(e.ctx)
		deleted.Store(true)
		if took := time.Since(began); err != nil || took > 8*time.Second {
			t.Errorf("Delete = %v after %v, want less than 8s", err, took)
		}
	}()
	var slowest time.Duration
	for i := 0; !deleted.Load(); i++ {
		start := time.Now()
		x := other.exec(fmt.Sprintf("e%d", i), config{}, nil, "echo", "hello")
		e.must(x.Start(e.ctx), "start exec in the other container")
		x.wantExit(0)
		if got := x.out.String(); got != "hello\n" {
			t.Errorf("exec in the other container wrote %q", got)
		}
		slowest = max(slowest, time.Since(start))
	}
	<-done
	t.Logf("Delete took %v; the slowest exec in the other container %v", time.Since(began), slowest)
	if slowest > 3*time.Second {
		t.Errorf("an exec in the other container took %v", slowest)
	}
	other.kill()
}

// containerd#10094, containerd#9568: an exec hung, or took the whole time-out, when a child that it left held its
// output.
func TestExec_DoesNotHangOnOutputThatItsChildrenHold(t *testing.T) {
	harness.OursOnly(t, "an exec that is over soon after its process is")
	parent := newEnv(t)
	c := parent.run("c1", config{}, "sleep", "1000")
	t.Cleanup(c.kill)
	for i, tt := range []struct {
		name     string
		terminal bool
		script   string
	}{
		{"a child in the background", false, "sleep 1000 & echo done"},
		{"a child in a session of its own", false, "setsid sleep 1000 & echo done"},
		{"a child that goes on writing", false, "(while :; do echo noise >&2; usleep 10000; done) & echo done"},
		{"a child with the terminal", true, "trap '' HUP; setsid sh -c 'trap \"\" HUP; sleep 1000' & echo done"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			of := *c
			of.e = e
			x := of.exec(fmt.Sprintf("e%d", i), config{terminal: tt.terminal}, nil, "sh", "-c", tt.script)
			began := time.Now()
			e.must(x.Start(e.ctx), "start")
			x.exit()
			x.out.WaitFor(t, "done")
			_, err := x.Delete(e.ctx) // without the client's own wait for the end of the output
			e.must(err, "delete")
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("exec took %v, want less than 3s", took)
			}
			if got := strings.TrimSpace(x.out.String()); got != "done" {
				t.Errorf("stdout = %q, want done", got)
			}
		})
	}
}

func TestDelete_ManyAtOnceAreOne(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "true")
	e.must(x.Start(e.ctx), "start e1")
	x.exit()
	service := e.client.TaskService()
	deleteOften(t, "exec", 1, func() error {
		_, err := service.DeleteProcess(e.ctx, &tasks.DeleteProcessRequest{ContainerID: "c1", ExecID: "e1"})
		return err
	})
	x.closeIO()
	e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill")
	c.exit()
	// Each gets the answer of the first, whose caller may have given up. From the runc shim only one gets any, and
	// containerd takes a task that its shim does not know for deleted.
	direct, succeed := e.direct("c1"), 6
	if harness.Runtime() != harness.Ours {
		succeed = 1
	}
	deleteOften(t, "container", succeed, func() error {
		_, err := direct.Delete(e.ctx, &task3.DeleteRequest{ID: "c1"})
		return err
	})
	e.waitEvents("c1", "delete c1")
	if got := strings.Count(e.events.Text("c1"), "delete c1"); got > 1 {
		t.Errorf("events = %q, want one delete", e.events.Text("c1"))
	}
	_, _ = service.Delete(e.ctx, &tasks.DeleteTaskRequest{ContainerID: "c1"})
	_, err := service.Delete(e.ctx, &tasks.DeleteTaskRequest{ContainerID: "c1"})
	wantError(t, errgrpc.ToNative(err), errdefs.ErrNotFound, "c1")
	c.closeIO()
}

// deleteOften deletes five times at once and once more.
func deleteOften(t *testing.T, what string, want int, remove func() error) {
	t.Helper()
	var all sync.WaitGroup
	var succeeded atomic.Int32
	again := func() {
		switch err := errgrpc.ToNative(remove()); {
		case err == nil:
			succeeded.Add(1)
		case !errors.Is(err, errdefs.ErrNotFound):
			t.Errorf("another Delete of the %s = %v, want not found", what, err)
		}
	}
	for range 5 {
		all.Go(again)
	}
	all.Wait()
	again()
	if got := succeeded.Load(); int(got) != want {
		t.Errorf("%d Deletes of the %s succeeded, want %d", got, what, want)
	}
}

// containerd#8981: after a Delete that failed, no other could succeed. weather_stuck_test.go has another hindrance.
func TestDelete_ThatFailedCanBeTriedAgain(t *testing.T) {
	harness.OursOnly(t, "to remove its file from the bundle")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	e.immutable(e.bundle("c1"), true)
	restore := sync.OnceFunc(func() { e.immutable(e.bundle("c1"), false) })
	t.Cleanup(restore)
	e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill")
	c.exit()
	service := e.client.TaskService()
	if _, err := service.Delete(e.ctx, &tasks.DeleteTaskRequest{ContainerID: "c1"}); err == nil {
		t.Fatal("Delete = nil, want that it fails")
	}
	restore()
	r, err := service.Delete(e.ctx, &tasks.DeleteTaskRequest{ContainerID: "c1"})
	e.must(errgrpc.ToNative(err), "Delete after the hindrance is gone")
	if r.GetExitStatus() != 137 {
		t.Errorf("exit status = %d, want 137", r.GetExitStatus())
	}
	c.closeIO()
	e.waitEvents("c1", "delete c1")
	if got := strings.Count(e.events.Text("c1"), "delete c1"); got > 1 {
		t.Errorf("events = %q, want one delete", e.events.Text("c1"))
	}
}

// intruder puts a process of the test's own into the container's cgroup, where nobody looks for it: the container has a
// pid namespace of its own, so that its processes are dead when the first one is.
func intruder(e *env, id string, _ *task) func() {
	e.Helper()
	sleep := exec.Command("sleep", "1000")
	e.must(sleep.Start(), "start intruder")
	end := func() {
		_ = sleep.Process.Kill() // it may be dead: killing it is a way to succeed
		_ = sleep.Wait()
	}
	roots, err := harness.CgroupRoots()
	e.must(err, "cgroup hierarchies")
	moved := false
	for _, root := range roots {
		procs := filepath.Join(root, e.namespace, id, "cgroup.procs")
		moved = os.WriteFile(procs, []byte(strconv.Itoa(sleep.Process.Pid)), 0) == nil || moved
	}
	if !moved {
		end()
		e.Fatal("the intruder is in no cgroup of the container")
	}
	return end
}

// Whoever is in the cgroup of a container ends with it, as with a scope of systemd; else the cgroup could not be
// removed.
func TestDelete_EndsAProcessThatWasMovedIn(t *testing.T) {
	harness.OursOnly(t, "to end what shares no namespace with the container")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	end := sync.OnceFunc(intruder(e, "c1", c))
	defer end()
	began := time.Now()
	c.kill()
	if took := time.Since(began); took > harness.Slow(5*time.Second) {
		t.Errorf("kill and delete took %v with a process of somebody else in the cgroup", took)
	}
}

// immutable sets or clears the attribute that keeps files from being made or removed in dir.
func (e *env) immutable(dir string, on bool) {
	e.Helper()
	f, err := os.Open(dir)
	e.must(err, "open bundle")
	defer func() { _ = f.Close() }()
	const attribute = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		e.Skipf("CANNOT RUN HERE: the file system of %s has no immutable attribute: %v", dir, err)
	}
	e.must(err, "read attributes")
	if flags &^= attribute; on {
		flags |= attribute
	}
	e.must(unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags), "set attributes")
}

func TestDelete_RootfsInUseDoesNotKeepTheContainer(t *testing.T) {
	harness.OursOnly(t, "that a busy root file system is detached")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	rootfs := filepath.Join(e.bundle("c1"), "rootfs")
	inside := filepath.Join(rootfs, "tmp")
	e.must(unix.Mount(t.TempDir(), inside, "", unix.MS_BIND, ""), "mount something inside")
	busy, err := os.Open(filepath.Join(rootfs, "etc"))
	e.must(err, "open something inside")
	defer func() { _ = busy.Close() }()
	c.kill()
	if left := e.scope().Mounts(); len(left) > 0 {
		t.Errorf("still mounted: %v", left)
	}
}

func TestShutdown_IsIgnoredWhileATaskLives(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	direct := e.direct("c1")
	for _, now := range []bool{false, true} {
		_, err := direct.Shutdown(e.ctx, &task3.ShutdownRequest{ID: "c1", Now: now})
		e.must(err, "shutdown")
		x := c.exec(fmt.Sprintf("e%t", now), config{}, nil, "true")
		e.must(x.Start(e.ctx), "start an exec after the shutdown")
		x.wantExit(0)
	}
	c.kill()
}

// direct calls the shim of a container, past containerd.
func (e *env) direct(id string) task3.TTRPCTaskService {
	e.Helper()
	direct, err := harness.DialShim(e, e.bundle(id))
	e.must(err, "dial the shim")
	return direct
}
