// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"math"
	"os"
	"syscall"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/task"
)

// taskService is containerd.task.v2.Task and, being the same on the wire,
// containerd.task.v3.Task. Its methods are in the order of the proto.
type taskService struct {
	sandbox *task.Manager
}

var empty = &api.Empty{}

func (t *taskService) State(_ context.Context, r *api.StateRequest) (*api.StateResponse, error) {
	p, err := t.sandbox.Process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return stateResponse(p.Status()), nil
}

func (t *taskService) Create(ctx context.Context, r *api.CreateTaskRequest) (*api.CreateTaskResponse, error) {
	o, err := options.Decode(r.Options)
	if err != nil {
		return nil, err
	}
	c, err := t.sandbox.Create(ctx, task.CreateRequest{
		ID: r.ID, Bundle: r.Bundle, Rootfs: mounts(r.Rootfs),
		IO: streams(r.Stdin, r.Stdout, r.Stderr, r.Terminal), Checkpoint: r.Checkpoint, Options: o,
	})
	if err != nil {
		return nil, err
	}
	return &api.CreateTaskResponse{Pid: uint32(c.Init().Pid())}, nil
}

func (t *taskService) Start(ctx context.Context, r *api.StartRequest) (*api.StartResponse, error) {
	p, err := t.sandbox.Start(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return &api.StartResponse{Pid: uint32(p.Pid())}, nil
}

func (t *taskService) Delete(ctx context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
	s, err := t.sandbox.Delete(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return &api.DeleteResponse{Pid: uint32(s.Pid), ExitStatus: uint32(s.Exit.Status), ExitedAt: timestamp(s.Exit.At)}, nil
}

func (t *taskService) Pids(_ context.Context, r *api.PidsRequest) (*api.PidsResponse, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	pids, err := c.Cgroup().Procs()
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	if init := c.Init(); len(pids) == 0 && init.Status().State == process.Stopped {
		// Of a container that has exited, its init, as State tells it. containerd,
		// when it starts, deletes a container that has no pid
		// (core/runtime/v2/shim_load.go), and nobody would hear how it ended.
		pids = []int{init.Pid()}
	}
	infos, err := processInfos(pids, c.Execs())
	if err != nil {
		return nil, err
	}
	return &api.PidsResponse{Processes: infos}, nil
}

func (t *taskService) Pause(ctx context.Context, r *api.PauseRequest) (*api.Empty, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	return empty, c.Pause(ctx)
}

func (t *taskService) Resume(ctx context.Context, r *api.ResumeRequest) (*api.Empty, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	return empty, c.Resume(ctx)
}

func (t *taskService) Checkpoint(ctx context.Context, r *api.CheckpointTaskRequest) (*api.Empty, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	request, err := checkpointRequest(r)
	if err != nil {
		return nil, fmt.Errorf("container %q: checkpoint: %w", r.ID, err)
	}
	return empty, c.Checkpoint(ctx, request)
}

func (t *taskService) Kill(ctx context.Context, r *api.KillRequest) (*api.Empty, error) {
	const lastSignal = 64 // SIGRTMAX, signal(7)
	if r.Signal > lastSignal {
		return nil, fmt.Errorf("signal %d: must be at most %d: %w", r.Signal, lastSignal, errdefs.ErrInvalidArgument)
	}
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	if r.All {
		return empty, c.KillAll(ctx, syscall.Signal(r.Signal))
	}
	p, err := c.Process(r.ExecID)
	if err != nil {
		return nil, err
	}
	return empty, p.Kill(syscall.Signal(r.Signal))
}

func (t *taskService) Exec(_ context.Context, r *api.ExecProcessRequest) (*api.Empty, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	spec, err := execProcess(r.Spec)
	if err != nil {
		return nil, fmt.Errorf("container %q: exec %q: %w", r.ID, r.ExecID, err)
	}
	spec.Terminal = r.Terminal
	return empty, t.sandbox.Exec(c, r.ExecID, spec, streams(r.Stdin, r.Stdout, r.Stderr, r.Terminal))
}

func (t *taskService) ResizePty(_ context.Context, r *api.ResizePtyRequest) (*api.Empty, error) {
	if r.Width > math.MaxUint16 || r.Height > math.MaxUint16 {
		return nil, fmt.Errorf("terminal size %dx%d: must be at most %d each: %w", r.Width, r.Height, math.MaxUint16, errdefs.ErrInvalidArgument)
	}
	p, err := t.sandbox.Process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return empty, p.Resize(uint16(r.Width), uint16(r.Height))
}

func (t *taskService) CloseIO(_ context.Context, r *api.CloseIORequest) (*api.Empty, error) {
	p, err := t.sandbox.Process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if !r.Stdin {
		return empty, nil // nothing else can be closed
	}
	return empty, p.CloseStdin()
}

func (t *taskService) Update(ctx context.Context, r *api.UpdateTaskRequest) (*api.Empty, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	resources, err := linuxResources(r.Resources)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	return empty, c.Update(ctx, resources)
}

func (t *taskService) Wait(ctx context.Context, r *api.WaitRequest) (*api.WaitResponse, error) {
	p, err := t.sandbox.Process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return &api.WaitResponse{ExitStatus: uint32(exit.Status), ExitedAt: timestamp(exit.At)}, nil
}

func (t *taskService) Stats(_ context.Context, r *api.StatsRequest) (*api.StatsResponse, error) {
	c, err := t.sandbox.Container(r.ID)
	if err != nil {
		return nil, err
	}
	metrics, err := c.Metrics()
	if err != nil {
		return nil, err
	}
	packed, err := pack(string(metrics.ProtoReflect().Descriptor().FullName()), metrics)
	if err != nil {
		return nil, err
	}
	return &api.StatsResponse{Stats: packed}, nil
}

// Connect answers for ids that are not known too: containerd asks for the
// shim's pid before there is a task, and by the id of a sandbox.
func (t *taskService) Connect(_ context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	var init process.Status
	if c, err := t.sandbox.Container(r.ID); err == nil {
		init = c.Init().Status()
	}
	return &api.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: uint32(init.Pid)}, nil
}

func (t *taskService) Shutdown(context.Context, *api.ShutdownRequest) (*api.Empty, error) {
	t.sandbox.Shutdown()
	return empty, nil
}
