// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/event"
)

// message is the topic, the name and the message under which containerd knows an event (containerd core/runtime/events.go and
// api/events/task.proto).
func message(e event.Event) (topic, name string, _ any) {
	switch e := e.(type) {
	case event.TaskCreate:
		return "/tasks/create", "containerd.events.TaskCreate", &api.TaskCreate{
			ContainerID: e.ContainerID, Bundle: e.Bundle, Rootfs: apiMounts(e.Rootfs), Checkpoint: e.Checkpoint, Pid: uint32(e.Pid),
			IO: (*api.TaskIO)(&e.IO),
		}
	case event.TaskStart:
		return "/tasks/start", "containerd.events.TaskStart", &api.TaskStart{ContainerID: e.ContainerID, Pid: uint32(e.Pid)}
	case event.TaskOOM:
		return "/tasks/oom", "containerd.events.TaskOOM", &api.TaskOOM{ContainerID: e.ContainerID}
	case event.TaskExit:
		return "/tasks/exit", "containerd.events.TaskExit", &api.TaskExit{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status), ExitedAt: timestamp(e.At),
		}
	case event.TaskDelete:
		return "/tasks/delete", "containerd.events.TaskDelete", &api.TaskDelete{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status), ExitedAt: timestamp(e.At),
		}
	case event.TaskExecAdded:
		return "/tasks/exec-added", "containerd.events.TaskExecAdded", &api.TaskExecAdded{ContainerID: e.ContainerID, ExecID: e.ExecID}
	case event.TaskExecStarted:
		return "/tasks/exec-started", "containerd.events.TaskExecStarted", &api.TaskExecStarted{ContainerID: e.ContainerID, ExecID: e.ExecID, Pid: uint32(e.Pid)}
	case event.TaskPaused:
		return "/tasks/paused", "containerd.events.TaskPaused", &api.TaskPaused{ContainerID: e.ContainerID}
	case event.TaskResumed:
		return "/tasks/resumed", "containerd.events.TaskResumed", &api.TaskResumed{ContainerID: e.ContainerID}
	case event.TaskCheckpointed:
		return "/tasks/checkpointed", "containerd.events.TaskCheckpointed", &api.TaskCheckpointed{ContainerID: e.ContainerID, Checkpoint: e.Checkpoint}
	}
	panic(fmt.Sprintf("service: event %T has no message", e))
}

func apiMounts(list []event.Mount) []*api.Mount {
	var all []*api.Mount
	for _, m := range list {
		all = append(all, &api.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
