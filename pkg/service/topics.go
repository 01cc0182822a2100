// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/shim/pkg/event"
)

// message is the topic and the message under which containerd knows an event
// (containerd core/runtime/events.go, api/events/task.proto).
func message(e event.Event) (topic string, _ proto.Message) {
	switch e := e.(type) {
	case event.TaskCreate:
		return "/tasks/create", &events.TaskCreate{
			ContainerID: e.ContainerID, Bundle: e.Bundle, Rootfs: apiMounts(e.Rootfs), Checkpoint: e.Checkpoint, Pid: uint32(e.Pid),
			IO: &events.TaskIO{Stdin: e.IO.Stdin, Stdout: e.IO.Stdout, Stderr: e.IO.Stderr, Terminal: e.IO.Terminal},
		}
	case event.TaskStart:
		return "/tasks/start", &events.TaskStart{ContainerID: e.ContainerID, Pid: uint32(e.Pid)}
	case event.TaskOOM:
		return "/tasks/oom", &events.TaskOOM{ContainerID: e.ContainerID}
	case event.TaskExit:
		return "/tasks/exit", &events.TaskExit{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status), ExitedAt: timestamp(e.At),
		}
	case event.TaskDelete:
		return "/tasks/delete", &events.TaskDelete{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status), ExitedAt: timestamp(e.At),
		}
	case event.TaskExecAdded:
		return "/tasks/exec-added", &events.TaskExecAdded{ContainerID: e.ContainerID, ExecID: e.ExecID}
	case event.TaskExecStarted:
		return "/tasks/exec-started", &events.TaskExecStarted{ContainerID: e.ContainerID, ExecID: e.ExecID, Pid: uint32(e.Pid)}
	case event.TaskPaused:
		return "/tasks/paused", &events.TaskPaused{ContainerID: e.ContainerID}
	case event.TaskResumed:
		return "/tasks/resumed", &events.TaskResumed{ContainerID: e.ContainerID}
	case event.TaskCheckpointed:
		return "/tasks/checkpointed", &events.TaskCheckpointed{ContainerID: e.ContainerID, Checkpoint: e.Checkpoint}
	}
	panic(fmt.Sprintf("service: event %T has no message", e))
}

func apiMounts(list []event.Mount) []*types.Mount {
	var all []*types.Mount
	for _, m := range list {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
