// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

func TestRun_ReportsItsExitAndLeavesNothing(t *testing.T) { testRun(newEnv(t)) }

func testRun(e *env) {
	c := e.run("c1", config{}, "sh", "-c", "echo out; echo err >&2; exit 7")
	c.wantExit(7)
	if got := c.out.String(); got != "out\n" {
		e.Errorf("stdout = %q, want %q", got, "out\n")
	}
	if got := c.err.String(); got != "err\n" {
		e.Errorf("stderr = %q, want %q", got, "err\n")
	}
	e.wantEvents("c1", "create c1 | start c1 | exit c1 7 | delete c1")
}

func TestStreams_StdinAndItsEndReachTheContainer(t *testing.T) { testInput(newEnv(t)) }

func testInput(e *env) {
	const text = "line one\nline two\n"
	c := e.create("c1", config{stdin: strings.NewReader(text)}, "cat")
	e.must(c.process.Start(e.ctx), "start")
	e.must(c.process.CloseIO(e.ctx, withStdin), "close stdin")
	c.wantExit(0)
	if got := c.out.String(); got != text {
		e.Errorf("stdout = %q, want what was put in, %q", got, text)
	}
}

func TestState_FollowsTheLifeOfAContainer(t *testing.T) { testStatus(newEnv(t)) }

func testStatus(e *env) {
	c := e.create("c1", config{}, "sleep", "1000")
	wantStatus(c, client.Created)
	e.must(c.process.Start(e.ctx), "start")
	wantStatus(c, client.Running)
	e.must(c.Pause(e.ctx), "pause")
	wantStatus(c, client.Paused)
	e.must(c.Resume(e.ctx), "resume")
	wantStatus(c, client.Running)
	if _, err := c.Task.Delete(e.ctx); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		e.Errorf("Delete while running = %v, want failed precondition", err)
	}
	e.must(c.process.Kill(e.ctx, 9), "kill")
	c.exit()
	wantStatus(c, client.Stopped)
	c.delete()
	e.wantEvents("c1", "create c1 | start c1 | paused c1 | resumed c1 | exit c1 137 | delete c1")
}

func wantStatus(c *task, want client.ProcessStatus) {
	c.e.Helper()
	status, err := c.Status(c.e.ctx)
	c.e.must(err, "status")
	if status.Status != want {
		c.e.Errorf("status = %v, want %v", status.Status, want)
	}
	if exited := want == client.Stopped; status.ExitTime.IsZero() == exited {
		c.e.Errorf("time of the exit = %v while %v", status.ExitTime, want)
	}
}

func TestPause_ContainerStandsStillAndCanBeKilled(t *testing.T) { testPaused(newEnv(t)) }

func testPaused(e *env) {
	c := e.run("c1", config{}, "sleep", "1000")
	e.must(c.Pause(e.ctx), "pause")
	frozen, err := harness.CgroupFile("/"+e.namespace+"/c1", "freezer.state", "cgroup.freeze")
	e.must(err, "freezer")
	if frozen != "FROZEN" && frozen != "1" {
		e.Errorf("freezer of a paused container is %q", frozen)
	}
	if err := c.Pause(e.ctx); err == nil {
		e.Error("second Pause = nil, want an error")
	}
	if x, err := c.tryExec("e1", config{}, nil, "true"); err == nil {
		if err := x.Start(e.ctx); err == nil {
			e.Error("Start of an exec while paused = nil, want an error")
		}
		_, err = x.Delete(e.ctx)
		e.must(err, "delete e1")
	}
	c.kill()
}

func TestPids_NamesTheProcessesAndTheirExecs(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.startExec("e1", config{}, nil, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo ready; wait")
	x.out.WaitFor(t, "ready")
	list, err := c.Pids(e.ctx)
	e.must(err, "pids")
	execs := map[uint32]string{}
	for _, p := range list {
		execs[p.Pid] = ""
		if p.Info == nil {
			continue
		}
		v, err := typeurl.UnmarshalAny(p.Info)
		e.must(err, "process details")
		execs[p.Pid] = v.(*options.ProcessDetails).GetExecID()
	}
	if len(execs) != 3 {
		t.Errorf("Pids = %v, want init, exec and the exec's child", execs)
	}
	if got, ok := execs[c.Task.Pid()]; !ok || got != "" {
		t.Errorf("Pids = %v, want init's pid %d without an exec id", execs, c.Task.Pid())
	}
	if got := execs[x.Pid()]; got != "e1" {
		t.Errorf("Pids = %v, want exec id e1 for pid %d", execs, x.Pid())
	}
	e.must(x.Kill(e.ctx, 9), "kill e1")
	x.wantExit(137)
	c.kill()
}

func TestShim_KeepsNothingOfWhatIsDone(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	work := func(round string) {
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			x := c.startExec(round+id, config{stdin: strings.NewReader("x"), terminal: id == "a"}, nil, "sh",
				"-c", "echo hello")
			x.wantExit(0)
			_, err := c.Metrics(e.ctx)
			e.must(err, "metrics")
		}
		e.must(c.Pause(e.ctx), "pause")
		e.must(c.Resume(e.ctx), "resume")
	}
	shim := e.shim("c1")
	stacks := func() int {
		size := e.containerd.LogSize()
		return harness.Goroutines(t, shim, func() string { return e.containerd.LogFrom(size) })
	}
	work("warm") // what is opened once and kept is not a leak
	before, err := harness.ReadUsage(shim)
	e.must(err, "usage")
	goroutines := stacks()
	for _, round := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		work(round)
	}
	harness.CheckUsage(t, shim, before, 6)
	// 40 execs went by: one goroutine left by each would show as 40. A few may be on their way out.
	if after := stacks(); after > goroutines+5 {
		t.Errorf("shim has %d goroutines, %d before", after, goroutines)
	}
	if zombies := harness.Zombies(shim); len(zombies) > 0 {
		t.Errorf("shim has not collected %v", zombies)
	}
	c.kill()
}

func TestInfo_NamesTheRuntimeAndItsFeatures(t *testing.T) {
	e := newEnv(t)
	info, err := e.client.RuntimeInfo(e.ctx, e.containerd.Env.Runtime, nil)
	e.must(err, "runtime info")
	if info.Name == "" || info.Version.Version == "" {
		t.Errorf("name %q, version %q, want both", info.Name, info.Version.Version)
	}
	features, ok := info.Features.(*features.Features)
	if !ok || !slices.Contains(features.Linux.Namespaces, "user") || len(features.MountOptions) == 0 {
		t.Errorf("features = %T %+v, want the OCI features with user namespaces and mount options", info.Features,
			info.Features)
	}
	if harness.Runtime() != harness.Ours {
		return
	}
	if unsafe := features.PotentiallyUnsafeConfigAnnotations; !slices.Contains(unsafe, annotationHostRootfs) {
		t.Errorf("annotations that are called unsafe: %v, want %s in it", unsafe, annotationHostRootfs)
	}

	// What tells a node from another.
	drivers := "cgroupfs"
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		drivers += ",systemd"
	}
	criu, _ := exec.LookPath("criu") // none is an answer too
	for key, want := range map[string]string{
		"cgroup.drivers": drivers, "criu": criu, "settings": "", "seccomp": "",
		"exec-launcher": strconv.FormatBool(slices.Contains([]string{"amd64", "arm64"}, runtime.GOARCH)),
	} {
		got, ok := info.Annotations["io.containerd.sandbox.v1/"+key]
		if !ok || want != "" && !slices.Contains(strings.Fields(want), got) || want == "" && got == "" && key != "criu" {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
}

func TestKill_ReachesTheProcessItIsSentTo(t *testing.T) { testSignal(newEnv(t)) }

func testSignal(e *env) {
	const script = `trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`
	c := e.run("c1", config{}, "sh", "-c", script)
	c.out.WaitFor(e, "ready")
	x := c.startExec("e1", config{}, nil, "sh", "-c", script)
	x.out.WaitFor(e, "ready")

	e.must(c.process.Kill(e.ctx, syscall.SIGUSR1), "USR1 to c1")
	c.out.WaitFor(e, "usr1")
	e.must(x.Kill(e.ctx, syscall.SIGTERM), "TERM to e1")
	x.wantExit(9)
	e.must(c.process.Kill(e.ctx, syscall.SIGTERM), "TERM to c1")
	c.wantExit(9)
	if got, want := x.out.String(), "ready\nterm\n"; got != want {
		e.Errorf("e1 wrote %q, want %q", got, want)
	}
	if got, want := c.out.String(), "ready\nusr1\nterm\n"; got != want {
		e.Errorf("c1 wrote %q, want %q", got, want)
	}
}

func TestCreated_CanBeKilledAndDeletedWithoutStart(t *testing.T) {
	e := newEnv(t)
	c := e.create("c1", config{}, "true")
	harness.CheckAsleep(t, int(c.Task.Pid()))
	c.kill()
	e.wantEvents("c1", "create c1 | exit c1 137 | delete c1")
	c = e.create("c2", config{}, "true")
	// The client refuses to ask for this, containerd does not.
	_, err := e.client.TaskService().Delete(e.ctx, &tasks.DeleteTaskRequest{ContainerID: "c2"})
	e.must(err, "delete c2")
	c.closeIO()
	e.waitEvents("c2", "delete c2")
}

// gated gives a container a hook of a kind that waits at a gate.
func gated(gate *harness.Gate, at string) config {
	return config{opts: with(hooks(func(kind string) *specs.Hook {
		if kind != at {
			return nil
		}
		hook := gate.Hook()
		return &hook
	}))}
}

// callsOn lists the calls on task c1 that containerd passes to its shim.
func callsOn(service tasks.TasksClient) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error {
			_, err := service.Get(ctx, &tasks.GetRequest{ContainerID: "c1"})
			return err
		},
		"List": func(ctx context.Context) error {
			r, err := service.List(ctx, &tasks.ListTasksRequest{})
			if err == nil && len(r.GetTasks()) == 0 {
				err = errdefs.ErrNotFound
			}
			return err
		},
		"Wait": func(ctx context.Context) error {
			_, err := service.Wait(ctx, &tasks.WaitRequest{ContainerID: "c1"})
			return err
		},
		"ListPids": func(ctx context.Context) error {
			_, err := service.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: "c1"})
			return err
		},
		"Metrics": func(ctx context.Context) error {
			r, err := service.Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==c1"}})
			if err == nil && len(r.GetMetrics()) == 0 {
				err = errdefs.ErrNotFound
			}
			return err
		},
		"Kill": func(ctx context.Context) error { // with a signal that a created container survives
			_, err := service.Kill(ctx, &tasks.KillRequest{ContainerID: "c1", Signal: 28})
			return err
		},
		"ResizePty": func(ctx context.Context) error {
			_, err := service.ResizePty(ctx, &tasks.ResizePtyRequest{ContainerID: "c1", Width: 80, Height: 24})
			return err
		},
		"CloseIO": func(ctx context.Context) error {
			_, err := service.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: "c1", Stdin: true})
			return err
		},
	}
}

// atEnd calls end once, when all of its text is read.
type atEnd struct {
	text *strings.Reader
	end  func()
}

func (r *atEnd) Read(b []byte) (int, error) {
	n, err := r.text.Read(b)
	if err == io.EOF && r.end != nil {
		r.end()
		r.end = nil
	}
	return n, err
}

// Before the end of a Create a client gets the answers of the runc shim, and containerd logs no error: it has none to
// hand on. A client cannot write to stdin before the task can be found: nerdctl asks for it at the end of its input.
func TestCreate_IsNotFoundBeforeItsEnd(t *testing.T) {
	e := newEnv(t)
	gate := harness.NewGate(t, publicDir(t))
	read, closed := make(chan struct{}), make(chan error, 1)
	created := make(chan *task, 1)
	calls := callsOn(e.client.TaskService())
	go func() {
		cfg := gated(gate, "createRuntime")
		cfg.stdin = &atEnd{strings.NewReader("hi\n"), func() {
			close(read)
			err := calls["Get"](e.ctx)
			if err == nil {
				err = calls["CloseIO"](e.ctx)
			}
			closed <- err
		}}
		c, err := e.tryCreate("c1", cfg, "cat")
		if err != nil {
			t.Errorf("create: %v", err)
		}
		created <- c
	}()
	gate.WaitReached()
	for name, call := range calls {
		if err := call(e.ctx); !errdefs.IsNotFound(err) && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
			t.Errorf("%s = %v, want not found", name, err)
		}
	}
	select {
	case <-read:
		t.Error("stdin is open before the end of Create")
	default:
	}
	gate.Open()
	c := <-created
	if c == nil {
		return
	}
	for line := range strings.Lines(e.containerd.LogFrom(e.logStart)) {
		if strings.Contains(line, "get state for") || strings.Contains(line, "unknown status") {
			t.Errorf("containerd logs %s", line)
		}
	}
	e.must(c.process.Start(e.ctx), "start")
	if harness.Runtime() != harness.Ours { // there a client can write a moment before the task is found
		c.kill()
		return
	}
	e.must(<-closed, "the end of stdin")
	c.wantExit(0) // at the end of its input
}

// While a Delete is under way a container is stopped for all who ask, and a client that gives up can delete it again. The
// runc shim answers after the Delete only, so that containerd waits for State for two seconds, and then tells its client
// that there is no task.
func TestDelete_IsStoppedBeforeItsEndAndAnsweredAgain(t *testing.T) {
	harness.OursOnly(t, "answers while a Delete is under way")
	e := newEnv(t)
	gate := harness.NewGate(t, publicDir(t))
	c := e.run("c1", gated(gate, "poststop"), "sh", "-c", "exit 7")
	c.exit()
	ctx, giveUp := context.WithCancel(e.ctx)
	deleted := make(chan error, 1)
	go func() { _, err := c.Task.Delete(ctx); deleted <- err }()
	gate.WaitReached()
	calls := callsOn(e.client.TaskService())
	for name, want := range map[string]error{
		"Get": nil, "List": nil, "Wait": nil, "ListPids": nil, "CloseIO": nil, "Kill": errdefs.ErrNotFound,
		"Metrics": errdefs.ErrNotFound, "ResizePty": errdefs.ErrFailedPrecondition,
	} {
		ctx, cancel := context.WithTimeout(e.ctx, harness.Slow(10*time.Second))
		if err := calls[name](ctx); !errors.Is(err, want) && !errors.Is(errgrpc.ToNative(err), want) {
			t.Errorf("%s = %v, want %v", name, err, want)
		}
		cancel()
	}
	giveUp()
	if err := <-deleted; !errors.Is(err, context.Canceled) && !errdefs.IsCanceled(err) {
		t.Fatalf("Delete whose caller gives up = %v, want that it was cancelled", err)
	}
	gate.Open()
	e.wantEvents("c1", "create c1 | start c1 | exit c1 7 | delete c1")
	if status := e.reload("c1").status("c1"); status.Status != client.Stopped || status.ExitStatus != 7 {
		t.Errorf("status = %+v, want that it stopped with 7", status)
	}
	exit, err := c.Task.Delete(e.ctx)
	e.must(err, "second delete")
	if exit.ExitCode() != 7 {
		t.Errorf("exit status of the second Delete = %d, want 7", exit.ExitCode())
	}
	next, err := c.container.NewTask(e.ctx, e.streams(config{}, &harness.Buffer{}, &harness.Buffer{}))
	e.must(err, "create it again")
	_, err = next.Delete(e.ctx, client.WithProcessKill)
	e.must(err, "delete the next")
	e.wantEvents("c1", fmt.Sprint("create c1 | start c1 | exit c1 7 | delete c1",
		" | create c1 | exit c1 137 | delete c1"))
}

const annotationPidFile = "io.containerd.sandbox.v1/pid-file"

func TestPidFile_NamesInitWhileTheContainerExists(t *testing.T) {
	harness.OursOnly(t, "pid-file")
	e := newEnv(t)
	e.allow("pid-file")
	dir := publicDir(t)
	c := e.create("c1", config{opts: with(annotations(annotationPidFile, dir+"/{id}"))}, "sleep", "1000")
	text, err := os.ReadFile(dir + "/c1")
	if got, want := string(text), strconv.Itoa(int(c.Task.Pid())); got != want {
		t.Errorf("pid file = %q, %v, want %s", got, err, want)
	}
	e.must(unix.Kill(e.shim("c1"), unix.SIGKILL), "SIGKILL to the shim")
	wantForgotten(t, e, c)
	harness.Eventually(t, "end of the pid files", func() error {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			return fmt.Errorf("the directory has %v (%w)", left, err)
		}
		return nil
	})
}

func TestCreated_StartsAfterRestartsOfContainerd(t *testing.T) {
	e := newEnvOn(t, startContainerd(t, shared.Env))
	dir := publicDir(t)
	c := e.create("c1", config{opts: with(bind(dir, "/out", "rw"))}, "sh", "-c", "echo ran >/out/file; exit 3")
	pid := c.Task.Pid()
	for _, stop := range []func(*harness.Containerd) error{(*harness.Containerd).Stop, (*harness.Containerd).Kill} {
		e.must(stop(e.containerd), "stop containerd")
		e.must(e.containerd.Start(e.ctx), "start containerd")
	}
	again := e.reload("c1")
	if got := again.status("c1").Status; got != client.Created || again.Task.Pid() != pid {
		t.Errorf("status %s of pid %d, want created of %d", got, again.Task.Pid(), pid)
	}
	e.must(again.process.Start(e.ctx), "start")
	again.wantExit(3)
	c.closeIO()
	if text, err := os.ReadFile(dir + "/file"); err != nil || string(text) != "ran\n" {
		t.Errorf("what it wrote = %q, %v", text, err)
	}
}
