// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"context"
	"net"
	"strings"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

type (
	connect = task.ConnectRequest
	empty   = emptypb.Empty
)

// callLimit bounds one call. The slowest is a Delete that waits for output: containerd gives it no limit, CRI 10 s.
const callLimit = 20 * time.Second

// Task calls the Task service of a shim. The messages of versions 2 and 3 are the same on the wire, so one set of types
// serves both. Errors have the class that containerd would see.
type Task struct {
	task.TTRPCTaskService
	client *ttrpc.Client
}

// Close hangs up.
func (t Task) Close() error { return t.client.Close() }

// caller calls the methods of one version.
type caller struct {
	client  *ttrpc.Client
	service string
}

// Dial connects to a shim's socket and calls the Task service of a version, "v2" or "v3".
func (f *Fake) Dial(address, version string) Task {
	f.Helper()
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), callLimit)
	f.Must(err, "dial "+address)
	client := ttrpc.NewClient(conn)
	f.Cleanup(func() { _ = client.Close() })
	return Task{TTRPCTaskService: caller{client, "containerd.task." + version + ".Task"}, client: client}
}

// call asks the shim and returns the error in the class that containerd would see.
func call[Resp any](ctx context.Context, c caller, method string, request any) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r := new(Resp)
	if err := c.client.Call(ctx, c.service, method, request, r); err != nil {
		return nil, errgrpc.ToNative(err)
	}
	return r, nil
}

func (c caller) State(ctx context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	return call[task.StateResponse](ctx, c, "State", r)
}

func (c caller) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	return call[task.CreateTaskResponse](ctx, c, "Create", r)
}

func (c caller) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	return call[task.StartResponse](ctx, c, "Start", r)
}

func (c caller) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	return call[task.DeleteResponse](ctx, c, "Delete", r)
}

func (c caller) Pids(ctx context.Context, r *task.PidsRequest) (*task.PidsResponse, error) {
	return call[task.PidsResponse](ctx, c, "Pids", r)
}

func (c caller) Pause(ctx context.Context, r *task.PauseRequest) (*empty, error) {
	return call[empty](ctx, c, "Pause", r)
}

func (c caller) Resume(ctx context.Context, r *task.ResumeRequest) (*empty, error) {
	return call[empty](ctx, c, "Resume", r)
}

func (c caller) Checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) (*empty, error) {
	return call[empty](ctx, c, "Checkpoint", r)
}

func (c caller) Kill(ctx context.Context, r *task.KillRequest) (*empty, error) {
	return call[empty](ctx, c, "Kill", r)
}

func (c caller) Exec(ctx context.Context, r *task.ExecProcessRequest) (*empty, error) {
	return call[empty](ctx, c, "Exec", r)
}

func (c caller) ResizePty(ctx context.Context, r *task.ResizePtyRequest) (*empty, error) {
	return call[empty](ctx, c, "ResizePty", r)
}

func (c caller) CloseIO(ctx context.Context, r *task.CloseIORequest) (*empty, error) {
	return call[empty](ctx, c, "CloseIO", r)
}

func (c caller) Update(ctx context.Context, r *task.UpdateTaskRequest) (*empty, error) {
	return call[empty](ctx, c, "Update", r)
}

func (c caller) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	return call[task.WaitResponse](ctx, c, "Wait", r)
}

func (c caller) Stats(ctx context.Context, r *task.StatsRequest) (*task.StatsResponse, error) {
	return call[task.StatsResponse](ctx, c, "Stats", r)
}

func (c caller) Connect(ctx context.Context, r *task.ConnectRequest) (*task.ConnectResponse, error) {
	return call[task.ConnectResponse](ctx, c, "Connect", r)
}

func (c caller) Shutdown(ctx context.Context, r *task.ShutdownRequest) (*empty, error) {
	return call[empty](ctx, c, "Shutdown", r)
}
