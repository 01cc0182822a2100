// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"fmt"

	"github.com/containerd/containerd/api/events"
)

// Container returns the id of the container that an event is about, or "" when it is no event of a task.
func Container(event any) string {
	switch e := event.(type) {
	case interface{ GetContainerID() string }:
		return e.GetContainerID()
	default:
		return ""
	}
}

// Describe prints one event: a word and the id of the process it is about. Exits carry their status unless it is 0.
func Describe(event any) string {
	switch e := event.(type) {
	case *events.TaskCreate:
		return "create " + e.GetContainerID()
	case *events.TaskStart:
		return "start " + e.GetContainerID()
	case *events.TaskExecAdded:
		return "exec-added " + e.GetExecID()
	case *events.TaskExecStarted:
		return "exec-start " + e.GetExecID()
	case *events.TaskExit:
		if e.GetExitStatus() == 0 {
			return "exit " + e.GetID()
		}
		return fmt.Sprintf("exit %s %d", e.GetID(), e.GetExitStatus())
	case *events.TaskDelete:
		if id := e.GetID(); id != "" && id != e.GetContainerID() {
			return "delete " + id
		}
		return "delete " + e.GetContainerID()
	case *events.TaskOOM:
		return "oom " + e.GetContainerID()
	case *events.TaskPaused:
		return "paused " + e.GetContainerID()
	case *events.TaskResumed:
		return "resumed " + e.GetContainerID()
	case *events.TaskCheckpointed:
		return "checkpointed " + e.GetContainerID()
	default:
		return fmt.Sprintf("%T", event)
	}
}
