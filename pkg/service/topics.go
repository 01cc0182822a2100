// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/event"
)

// message is the topic, the name and the message under which containerd knows an event (containerd core/runtime/events.go and
// api/events/task.proto).
func message(e event.Event) (topic, name string, _ any) {
	switch e := e.(type) {
	case event.TaskCreate:
		return "/tasks/create", "containerd.events.TaskCreate", &taskCreate{
			ContainerID: e.ContainerID, Bundle: e.Bundle, Rootfs: apiMounts(e.Rootfs), Checkpoint: e.Checkpoint, Pid: uint32(e.Pid),
			IO: (*taskIO)(&e.IO),
		}
	case event.TaskStart:
		return "/tasks/start", "containerd.events.TaskStart", &taskStart{ContainerID: e.ContainerID, Pid: uint32(e.Pid)}
	case event.TaskOOM:
		return "/tasks/oom", "containerd.events.TaskOOM", &taskOnly{ContainerID: e.ContainerID}
	case event.TaskExit:
		return "/tasks/exit", "containerd.events.TaskExit", &taskExit{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status), ExitedAt: timestamp(e.At),
		}
	case event.TaskDelete:
		return "/tasks/delete", "containerd.events.TaskDelete", &taskDelete{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status), ExitedAt: timestamp(e.At),
		}
	case event.TaskExecAdded:
		return "/tasks/exec-added", "containerd.events.TaskExecAdded", &taskExec{ContainerID: e.ContainerID, ExecID: e.ExecID}
	case event.TaskExecStarted:
		return "/tasks/exec-started", "containerd.events.TaskExecStarted", &taskExec{ContainerID: e.ContainerID, ExecID: e.ExecID, Pid: uint32(e.Pid)}
	case event.TaskPaused:
		return "/tasks/paused", "containerd.events.TaskPaused", &taskOnly{ContainerID: e.ContainerID}
	case event.TaskResumed:
		return "/tasks/resumed", "containerd.events.TaskResumed", &taskOnly{ContainerID: e.ContainerID}
	case event.TaskCheckpointed:
		return "/tasks/checkpointed", "containerd.events.TaskCheckpointed", &taskCheckpointed{ContainerID: e.ContainerID, Checkpoint: e.Checkpoint}
	}
	panic(fmt.Sprintf("service: event %T has no message", e))
}

// The messages have the numbers and types of containerd's api/events/task.proto. Its Go package would make protobuf ready for all
// of its messages in each shim.
type (
	taskCreate struct {
		ContainerID string         `protobuf:"bytes,1,opt,name=container_id,proto3"`
		Bundle      string         `protobuf:"bytes,2,opt,name=bundle,proto3"`
		Rootfs      []*types.Mount `protobuf:"bytes,3,rep,name=rootfs,proto3"`
		IO          *taskIO        `protobuf:"bytes,4,opt,name=io,proto3"`
		Checkpoint  string         `protobuf:"bytes,5,opt,name=checkpoint,proto3"`
		Pid         uint32         `protobuf:"varint,6,opt,name=pid,proto3"`
	}
	taskIO struct {
		Stdin    string `protobuf:"bytes,1,opt,name=stdin,proto3"`
		Stdout   string `protobuf:"bytes,2,opt,name=stdout,proto3"`
		Stderr   string `protobuf:"bytes,3,opt,name=stderr,proto3"`
		Terminal bool   `protobuf:"varint,4,opt,name=terminal,proto3"`
	}
	taskStart struct {
		ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
		Pid         uint32 `protobuf:"varint,2,opt,name=pid,proto3"`
	}
	taskExit struct {
		ContainerID string                 `protobuf:"bytes,1,opt,name=container_id,proto3"`
		ID          string                 `protobuf:"bytes,2,opt,name=id,proto3"`
		Pid         uint32                 `protobuf:"varint,3,opt,name=pid,proto3"`
		ExitStatus  uint32                 `protobuf:"varint,4,opt,name=exit_status,proto3"`
		ExitedAt    *timestamppb.Timestamp `protobuf:"bytes,5,opt,name=exited_at,proto3"`
	}
	taskDelete struct {
		ContainerID string                 `protobuf:"bytes,1,opt,name=container_id,proto3"`
		Pid         uint32                 `protobuf:"varint,2,opt,name=pid,proto3"`
		ExitStatus  uint32                 `protobuf:"varint,3,opt,name=exit_status,proto3"`
		ExitedAt    *timestamppb.Timestamp `protobuf:"bytes,4,opt,name=exited_at,proto3"`
		ID          string                 `protobuf:"bytes,5,opt,name=id,proto3"`
	}
	taskExec struct { // added, which has no pid, and started
		ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
		ExecID      string `protobuf:"bytes,2,opt,name=exec_id,proto3"`
		Pid         uint32 `protobuf:"varint,3,opt,name=pid,proto3"`
	}
	taskOnly struct { // OOM, paused, resumed
		ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
	}
	taskCheckpointed struct {
		ContainerID string `protobuf:"bytes,1,opt,name=container_id,proto3"`
		Checkpoint  string `protobuf:"bytes,2,opt,name=checkpoint,proto3"`
	}
)

// forwardRequest is that of the ttrpc service containerd.services.events.ttrpc.v1.Events.
type forwardRequest struct {
	Envelope *types.Envelope `protobuf:"bytes,1,opt,name=envelope,proto3"`
}

func apiMounts(list []event.Mount) []*types.Mount {
	var all []*types.Mount
	for _, m := range list {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
