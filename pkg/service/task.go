// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"

	api "github.com/containerd/containerd/api/runtime/task/v2"
	runc "github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/task"
)

// taskService is containerd.task.v2.Task and containerd.task.v3.Task. Its methods are in the order of the proto. A
// time of an exit that is not set is the year 1, as from the runc shim, and IsZero: containerd's clients would read a
// message without a time as 1970 (containerd protobuf/timestamp.go, FromTimestamp).
type taskService struct {
	group     *group.Group
	namespace string
	defaults  *options.Defaults
}

var _ api.TTRPCTaskService = (*taskService)(nil)

// methods returns those that api.RegisterTTRPCTaskService would register, which registers version 2 alone. The package
// of version 3 links gRPC.
func (t *taskService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"State":      method(t.State),
		"Create":     method(t.Create),
		"Start":      method(t.Start),
		"Delete":     method(t.Delete),
		"Pids":       method(t.Pids),
		"Pause":      method(t.Pause),
		"Resume":     method(t.Resume),
		"Checkpoint": method(t.Checkpoint),
		"Kill":       method(t.Kill),
		"Exec":       method(t.Exec),
		"ResizePty":  method(t.ResizePty),
		"CloseIO":    method(t.CloseIO),
		"Update":     method(t.Update),
		"Wait":       method(t.Wait),
		"Stats":      method(t.Stats),
		"Connect":    method(t.Connect),
		"Shutdown":   method(t.Shutdown),
	}
}

// method returns a ttrpc.Method that decodes a request and passes it to call. [Intercept] drops an answer that comes
// with an error.
func method[Request, Response any](call func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		r := new(Request)
		if err := unmarshal(r); err != nil {
			return nil, err
		}
		return call(ctx, r)
	}
}

var empty = &emptypb.Empty{}

func (t *taskService) tasks(id string) *task.Manager { return t.group.Of(id).Tasks }

func (t *taskService) State(_ context.Context, r *api.StateRequest) (*api.StateResponse, error) {
	s, err := t.tasks(r.ID).Status(r.ID, r.ExecID)
	return &api.StateResponse{
		ID: s.ID, Bundle: s.Bundle, Pid: uint32(s.Pid), Status: statuses[s.State],
		Stdin: s.IO.Stdin, Stdout: s.IO.Stdout, Stderr: s.IO.Stderr, Terminal: s.IO.Terminal,
		ExitStatus: uint32(s.Exit.Status), ExitedAt: timestamppb.New(s.Exit.At),
	}, err
}

func (t *taskService) Create(ctx context.Context, r *api.CreateTaskRequest) (*api.CreateTaskResponse, error) {
	o, err := t.defaults.Decode(r.Options, t.namespace)
	if err != nil {
		return nil, err
	}
	u, err := t.group.ToCreate(r.ID, r.Bundle)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", r.ID, err)
	}
	c, err := u.Tasks.Create(ctx, task.CreateRequest{
		ID: r.ID, Bundle: r.Bundle, Rootfs: mount.FromProto(r.Rootfs),
		IO: streams(r.Stdin, r.Stdout, r.Stderr, r.Terminal), Checkpoint: r.Checkpoint, Options: o,
	})
	if err != nil {
		return nil, err
	}
	return &api.CreateTaskResponse{Pid: uint32(c.Init().Pid())}, nil
}

func (t *taskService) Start(ctx context.Context, r *api.StartRequest) (*api.StartResponse, error) {
	p, err := t.tasks(r.ID).Start(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return &api.StartResponse{Pid: uint32(p.Pid())}, nil
}

func (t *taskService) Delete(ctx context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
	s, err := t.tasks(r.ID).Delete(ctx, r.ID, r.ExecID)
	exit := s.Exit
	at := timestamppb.New(exit.At)
	return &api.DeleteResponse{Pid: uint32(s.Pid), ExitStatus: uint32(exit.Status), ExitedAt: at}, err
}

func (t *taskService) Pids(_ context.Context, r *api.PidsRequest) (*api.PidsResponse, error) {
	c, err := t.tasks(r.ID).Container(r.ID)
	if err != nil {
		return nil, err
	}
	pids, err := c.PIDs()
	if err != nil {
		return nil, err
	}
	execs := c.Execs()
	answer := &api.PidsResponse{}
	for _, pid := range pids {
		info := &tasktypes.ProcessInfo{Pid: uint32(pid)}
		if execID, ok := execs[pid]; ok {
			if info.Info, err = typeurl.MarshalAnyToProto(&runc.ProcessDetails{ExecID: execID}); err != nil {
				return nil, err
			}
		}
		answer.Processes = append(answer.Processes, info)
	}
	return answer, nil
}

// onContainer calls f with a container. [Intercept] drops the answer if f fails.
func (t *taskService) onContainer(id string, f func(*task.Task) error) (*emptypb.Empty, error) {
	c, err := t.tasks(id).Container(id)
	if err != nil {
		return nil, err
	}
	return empty, f(c)
}

func (t *taskService) Pause(ctx context.Context, r *api.PauseRequest) (*emptypb.Empty, error) {
	return t.onContainer(r.ID, func(c *task.Task) error { return c.Pause(ctx) })
}

func (t *taskService) Resume(ctx context.Context, r *api.ResumeRequest) (*emptypb.Empty, error) {
	return t.onContainer(r.ID, func(c *task.Task) error { return c.Resume(ctx) })
}

func (t *taskService) Checkpoint(ctx context.Context, r *api.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return t.onContainer(r.ID, func(c *task.Task) error {
		request, err := checkpointRequest(r)
		if err != nil {
			return fmt.Errorf("container %q: checkpoint: %w", r.ID, err)
		}
		return c.Checkpoint(ctx, request)
	})
}

func (t *taskService) Kill(ctx context.Context, r *api.KillRequest) (*emptypb.Empty, error) {
	const lastSignal = 64 // SIGRTMAX, signal(7)
	if r.Signal > lastSignal {
		return nil, fmt.Errorf("signal %d: must be at most %d: %w", r.Signal, lastSignal, errdefs.ErrInvalidArgument)
	}
	return t.onContainer(r.ID, func(c *task.Task) error {
		if r.All && r.ExecID == "" { // an exec has no others
			return c.KillAll(ctx, syscall.Signal(r.Signal))
		}
		p, err := c.Process(r.ExecID)
		if err != nil {
			return err
		}
		return p.Kill(syscall.Signal(r.Signal))
	})
}

func (t *taskService) Exec(_ context.Context, r *api.ExecProcessRequest) (*emptypb.Empty, error) {
	return t.onContainer(r.ID, func(c *task.Task) error {
		var spec specs.Process
		if err := unpackSpec(r.Spec, "spec", "Process", &spec); err != nil {
			return fmt.Errorf("container %q: exec %q: %w", r.ID, r.ExecID, err)
		}
		spec.Terminal = r.Terminal
		return t.tasks(r.ID).Exec(c, r.ExecID, &spec, streams(r.Stdin, r.Stdout, r.Stderr, r.Terminal))
	})
}

func (t *taskService) ResizePty(_ context.Context, r *api.ResizePtyRequest) (*emptypb.Empty, error) {
	if r.Width > math.MaxUint16 || r.Height > math.MaxUint16 {
		return nil, fmt.Errorf("terminal size %dx%d: must be at most %d each: %w",
			r.Width, r.Height, math.MaxUint16, errdefs.ErrInvalidArgument)
	}
	p, err := t.tasks(r.ID).Process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return empty, p.Resize(uint16(r.Width), uint16(r.Height))
}

func (t *taskService) CloseIO(_ context.Context, r *api.CloseIORequest) (*emptypb.Empty, error) {
	p, err := t.tasks(r.ID).Process(r.ID, r.ExecID)
	if err != nil || !r.Stdin { // nothing else can be closed
		return empty, err
	}
	return empty, p.CloseStdin()
}

func (t *taskService) Update(ctx context.Context, r *api.UpdateTaskRequest) (*emptypb.Empty, error) {
	return t.onContainer(r.ID, func(c *task.Task) error {
		var resources specs.LinuxResources
		if err := unpackSpec(r.Resources, "resources", "LinuxResources", &resources); err != nil {
			return fmt.Errorf("container %q: %w", r.ID, err)
		}
		return c.Update(ctx, &resources)
	})
}

func (t *taskService) Wait(ctx context.Context, r *api.WaitRequest) (*api.WaitResponse, error) {
	p, err := t.tasks(r.ID).Process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	exit, err := p.Wait(ctx)
	return &api.WaitResponse{ExitStatus: uint32(exit.Status), ExitedAt: timestamppb.New(exit.At)}, err
}

func (t *taskService) Stats(_ context.Context, r *api.StatsRequest) (*api.StatsResponse, error) {
	c, err := t.tasks(r.ID).Container(r.ID)
	if err != nil {
		return nil, err
	}
	metrics, err := c.Metrics()
	if err != nil {
		return nil, err
	}
	packed, err := typeurl.MarshalAnyToProto(metrics)
	return &api.StatsResponse{Stats: packed}, err
}

// Connect answers for unknown ids too: containerd calls it before there is a task, and with the id of a sandbox.
func (t *taskService) Connect(_ context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	var init process.Status
	if c, err := t.tasks(r.ID).Container(r.ID); err == nil {
		init = c.Init().Status()
	}
	return &api.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: uint32(init.Pid)}, nil
}

func (t *taskService) Shutdown(_ context.Context, r *api.ShutdownRequest) (*emptypb.Empty, error) {
	t.group.Shutdown(r.ID)
	return empty, nil
}

var statuses = map[process.State]tasktypes.Status{
	process.Created: tasktypes.Status_CREATED,
	process.Running: tasktypes.Status_RUNNING,
	process.Pausing: tasktypes.Status_PAUSING,
	process.Paused:  tasktypes.Status_PAUSED,
	process.Stopped: tasktypes.Status_STOPPED,
	process.Deleted: tasktypes.Status_STOPPED, // seen only by a caller that found the process just before its deletion
}

func streams(stdin, stdout, stderr string, terminal bool) stdio.Config {
	return stdio.Config{Stdin: stdin, Stdout: stdout, Stderr: stderr, Terminal: terminal}
}

// checkpointRequest reads the options of a checkpoint. Without any, as from containerd's client, the container keeps
// running.
func checkpointRequest(r *api.CheckpointTaskRequest) (process.CheckpointRequest, error) {
	var o runc.CheckpointOptions
	if r.Options.GetTypeUrl() != "" {
		if err := r.Options.UnmarshalTo(&o); err != nil {
			return process.CheckpointRequest{}, fmt.Errorf("options: decode %s: %w: %w",
				o.ProtoReflect().Descriptor().FullName(), err, errdefs.ErrInvalidArgument)
		}
	}
	return process.CheckpointRequest{
		Path: r.Path, WorkPath: o.WorkPath, ParentPath: o.ParentPath, CgroupsMode: o.CgroupsMode,
		EmptyNamespaces: o.EmptyNamespaces, Exit: o.Exit, OpenTCP: o.OpenTcp,
		ExternalUnixSockets: o.ExternalUnixSockets, Terminal: o.Terminal, FileLocks: o.FileLocks,
	}, nil
}

// OCI types travel as JSON, under a URL that ends with version and name (containerd core/runtime/typeurl.go).
const specURL = "types.containerd.io/opencontainers/runtime-spec/"

func unpackSpec(a *anypb.Any, field, name string, to any) error {
	url := a.GetTypeUrl()
	if !strings.HasPrefix(url, specURL) || !strings.HasSuffix(url, "/"+name) {
		return fmt.Errorf("%s: type %q: want %s<version>/%s: %w", field, url, specURL, name, errdefs.ErrInvalidArgument)
	}
	return task.Decode(field, a.GetValue(), to)
}
