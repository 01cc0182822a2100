// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package event defines the events of a container that containerd is told, and the queue that publishes them in order.
//
// A Queue owns one goroutine, the publisher. NewQueue starts it; Close ends and joins it. One mutex guards the list. It
// is never held while an event is published, so Put cannot block on a receiver that is slow or away.
//
// Promises:
//   - Events are published in the order of their Put calls, one at a time: an event is not tried before the one ahead
//     of it was accepted or rejected. Promises P1 to P6 of the shim rest on this.
//   - An event is dropped only when the receiver rejects it, when it is put after Close, or when Close runs out of
//     time. Each of these is logged or returned.
//   - An event may be published twice, when the receiver's answer was lost.
//   - Consecutive OOM kills of a container are one event while that one waits to be sent. Each exit still comes after
//     the kills before it.
//
// The queue has no bound, on purpose. Each exec and each container makes a fixed number of events, apart from its OOM
// kills, and it is the receiver that starts them: while containerd is away nobody does, so the queue is limited by what
// runs. A bound would have to drop an exit or block the waiter that reports it.
//
// The package knows neither topics nor protobuf; the service package turns an Event into containerd's message.
package event

import "time"

// Event is one thing that happened to a container. It is one of the Task types of this package, by value: a type switch
// over them is complete. The fields are those of containerd's api/events/task.proto.
type Event interface{ container() string }

// Mount is one mount that the Create request asked for, as it was asked.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// IO names the ends of a process's standard streams as the request gave them. An empty string means no stream.
type IO struct {
	Stdin, Stdout, Stderr string
	Terminal              bool
}

// TaskCreate says that the init of a container exists and waits to be started.
type TaskCreate struct {
	ContainerID string
	Bundle      string
	Rootfs      []Mount
	IO          IO
	Checkpoint  string // the image the container was restored from; empty for a fresh one
	Pid         int
}

// TaskStart says that the init of a container runs.
type TaskStart struct {
	ContainerID string
	Pid         int
}

// TaskOOM says that the kernel killed a process of the container for want of memory.
type TaskOOM struct {
	ContainerID string
}

// TaskExit says that a process ended. ID is the container's id for its init and the exec's id for an exec, which is how
// containerd tells them apart. Status is the exit code, or 128 plus the signal that ended the process.
type TaskExit struct {
	ContainerID string
	ID          string
	Pid         int
	Status      int
	At          time.Time
}

// TaskDelete says that nothing of a process is left. ID, Status and At are as in TaskExit.
type TaskDelete struct {
	ContainerID string
	ID          string
	Pid         int
	Status      int
	At          time.Time
}

// TaskExecAdded says that an exec is known and may be started.
type TaskExecAdded struct {
	ContainerID string
	ExecID      string
}

// TaskExecStarted says that the process of an exec runs.
type TaskExecStarted struct {
	ContainerID string
	ExecID      string
	Pid         int
}

// TaskPaused says that all processes of a container are frozen.
type TaskPaused struct {
	ContainerID string
}

// TaskResumed says that the processes of a paused container run again.
type TaskResumed struct {
	ContainerID string
}

// TaskCheckpointed says that the state of a container was written to Checkpoint, a path.
type TaskCheckpointed struct {
	ContainerID string
	Checkpoint  string
}

func (e TaskCreate) container() string       { return e.ContainerID }
func (e TaskStart) container() string        { return e.ContainerID }
func (e TaskOOM) container() string          { return e.ContainerID }
func (e TaskExit) container() string         { return e.ContainerID }
func (e TaskDelete) container() string       { return e.ContainerID }
func (e TaskExecAdded) container() string    { return e.ContainerID }
func (e TaskExecStarted) container() string  { return e.ContainerID }
func (e TaskPaused) container() string       { return e.ContainerID }
func (e TaskResumed) container() string      { return e.ContainerID }
func (e TaskCheckpointed) container() string { return e.ContainerID }
