// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

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

// callsOn lists the calls on task c1 that containerd passes to a shim.
func callsOn(tasksClient tasks.TasksClient) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error {
			_, err := tasksClient.Get(ctx, &tasks.GetRequest{ContainerID: "c1"})
			return err
		},
		"List": func(ctx context.Context) error {
			r, err := tasksClient.List(ctx, &tasks.ListTasksRequest{})
			if err == nil && len(r.GetTasks()) == 0 {
				err = errdefs.ErrNotFound
			}
			return err
		},
		"Wait": func(ctx context.Context) error {
			_, err := tasksClient.Wait(ctx, &tasks.WaitRequest{ContainerID: "c1"})
			return err
		},
		"ListPids": func(ctx context.Context) error {
			_, err := tasksClient.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: "c1"})
			return err
		},
		"Metrics": func(ctx context.Context) error {
			r, err := tasksClient.Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==c1"}})
			if err == nil && len(r.GetMetrics()) == 0 {
				err = errdefs.ErrNotFound
			}
			return err
		},
		"Start": func(ctx context.Context) error {
			_, err := tasksClient.Start(ctx, &tasks.StartRequest{ContainerID: "c1"})
			return err
		},
		"Exec": func(ctx context.Context) error {
			spec, err := typeurl.MarshalAnyToProto(&specs.Process{Args: []string{"true"}, Cwd: "/"})
			if err == nil {
				_, err = tasksClient.Exec(ctx, &tasks.ExecProcessRequest{ContainerID: "c1", ExecID: "e1", Spec: spec})
			}
			return err
		},
		"Pause": func(ctx context.Context) error {
			_, err := tasksClient.Pause(ctx, &tasks.PauseTaskRequest{ContainerID: "c1"})
			return err
		},
		"Resume": func(ctx context.Context) error {
			_, err := tasksClient.Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: "c1"})
			return err
		},
		"Update": func(ctx context.Context) error {
			resources, err := typeurl.MarshalAnyToProto(&specs.LinuxResources{})
			if err == nil {
				_, err = tasksClient.Update(ctx, &tasks.UpdateTaskRequest{ContainerID: "c1", Resources: resources})
			}
			return err
		},
		"Kill": func(ctx context.Context) error { // with a signal that a created container survives
			_, err := tasksClient.Kill(ctx, &tasks.KillRequest{ContainerID: "c1", Signal: 28})
			return err
		},
		"ResizePty": func(ctx context.Context) error {
			_, err := tasksClient.ResizePty(ctx, &tasks.ResizePtyRequest{ContainerID: "c1", Width: 80, Height: 24})
			return err
		},
		"CloseIO": func(ctx context.Context) error {
			_, err := tasksClient.CloseIO(ctx, &tasks.CloseIORequest{ContainerID: "c1", Stdin: true})
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

// While a Delete is under way a container is stopped for all who ask. The runc shim answers after the Delete only, so
// that containerd waits for State for two seconds, and then tells its client that there is no task.
func TestDelete_IsStoppedBeforeItsEnd(t *testing.T) {
	harness.OursOnly(t, "answers while a Delete is under way")
	e := newEnv(t)
	gate := harness.NewGate(t, publicDir(t))
	c := e.run("c1", gated(gate, "poststop"), "true")
	c.exit()
	deleted := make(chan error, 1)
	go func() { _, err := c.Task.Delete(e.ctx); deleted <- err }()
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
	gate.Open()
	e.must(<-deleted, "delete")
}

// A client that gives up while its Delete is under way finds a stopped task, and can delete it.
func TestDelete_IsAnsweredAgain(t *testing.T) {
	harness.OursOnly(t, "State after a Delete whose answer was lost")
	e := newEnv(t)
	gate := harness.NewGate(t, publicDir(t))
	c := e.run("c1", gated(gate, "poststop"), "sh", "-c", "exit 7")
	c.exit()
	ctx, giveUp := context.WithCancel(e.ctx)
	deleted := make(chan error, 1)
	go func() { _, err := c.Task.Delete(ctx); deleted <- err }()
	gate.WaitReached()
	giveUp()
	if err := <-deleted; !errors.Is(err, context.Canceled) && !errdefs.IsCanceled(err) {
		t.Fatalf("Delete whose caller gives up = %v, want that it was cancelled", err)
	}
	gate.Open()
	e.wantEvents("c1", "create c1 | start c1 | exit c1 7 | delete c1")
	again, err := c.container.Task(e.ctx, nil)
	e.must(err, "load the task")
	if status, err := again.Status(e.ctx); err != nil || status.Status != client.Stopped || status.ExitStatus != 7 {
		t.Errorf("status = %+v (%v), want that it stopped with 7", status, err)
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
