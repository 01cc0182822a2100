// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package inspect defines the answer of the method Inspect (pkg/service/inspect.proto) as JSON. Fields may be added,
// and keep their meaning.
package inspect

import "time"

// Answer is about a shim and its containers.
type Answer struct {
	Shim       Shim            `json:"shim"`
	Pod        *Pod            `json:"pod,omitempty"` // of the Sandbox API, one of them; none without it
	Containers []ContainerInfo `json:"containers"`    // in the order of their ids
}

// Shim is the process.
type Shim struct {
	Version    string    `json:"version"`
	Pid        int       `json:"pid"`
	Started    time.Time `json:"started"`
	Namespace  string    `json:"namespace"`  // containerd's, of all containers
	Socket     string    `json:"socket"`     // its path
	Containerd string    `json:"containerd"` // socket that gets the events; empty: nobody does
	Clients    int       `json:"clients"`    // connections to Socket, including that of this call
	Events     Events    `json:"events"`
	Goroutines int       `json:"goroutines"`
	Heap       uint64    `json:"heap"`      // bytes of live and dead objects
	HeapHeld   uint64    `json:"heap_held"` // bytes that Go has from the kernel for objects
}

// Events are those for containerd.
type Events struct {
	Sent    int       `json:"sent"`              // taken or refused by containerd
	Waiting int       `json:"waiting"`           // not delivered yet
	Since   time.Time `json:"since,omitzero"`    // of the oldest that waits
	Oldest  string    `json:"oldest,omitempty"`  // its type: TaskExit
	Problem string    `json:"problem,omitempty"` // error of its last delivery
}

// Pod is a sandbox.
type Pod struct {
	ID    string `json:"id"`
	Stage string `json:"stage"` // creating, created, running, stopping or stopped
}

// ContainerInfo is the part of an answer about one container.
type ContainerInfo struct {
	ID          string            `json:"id"`
	Bundle      string            `json:"bundle"`
	State       string            `json:"state"` // created, running, pausing, paused or stopped
	Pid         int               `json:"pid"`   // of its first process; 0: it is not restored yet
	Exit        *Exit             `json:"exit,omitempty"`
	Launch      Launch            `json:"launch"`
	Cgroup      string            `json:"cgroup,omitempty"` // absolute path; on cgroup v1 that of one controller
	CPUSet      *CPUSet           `json:"cpuset,omitempty"` // none: it follows no source
	Notify      *Notify           `json:"notify,omitempty"` // none: start does not wait until it is ready
	Idle        *Idle             `json:"idle,omitempty"`   // none: it does not sleep
	HostRootfs  []HostDirectory   `json:"host_rootfs,omitempty"`
	Settings    []Setting         `json:"settings"`
	Execs       Execs             `json:"execs"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Exit is how a process ended.
type Exit struct {
	Status int       `json:"status"` // the exit code, or 128 and the signal
	At     time.Time `json:"at"`
}

// Values of Launch.Init (docs/decisions/0015-init-launcher.md).
const (
	ByLauncher     = "launcher"
	ByLibcontainer = "libcontainer"
	ByCRIU         = "criu"
)

// Launch is how the processes of a container were started.
type Launch struct {
	Init                string `json:"init"`
	InitReason          string `json:"init_reason,omitempty"` // why libcontainer started init
	ExecsByLibcontainer uint64 `json:"execs_by_libcontainer"` // also those that it failed to start
	ExecReason          string `json:"exec_reason,omitempty"` // why libcontainer started the last of these
}

// CPUSet is how a container follows the CPUs of another cgroup (docs/cpuset.md).
type CPUSet struct {
	Source string `json:"source"` // absolute path of the cgroup
	CPUs   string `json:"cpus"`   // assigned last
	Mems   string `json:"mems,omitempty"`
	Writes int    `json:"writes"`
	Pinned bool   `json:"pinned"`          // it has a cpuset of its own meanwhile
	Error  string `json:"error,omitempty"` // why the last assignment is kept
}

// Notify is the readiness that a container has reported.
type Notify struct {
	Ready  bool   `json:"ready"`
	Status string `json:"status,omitempty"`
	Errno  int    `json:"errno,omitempty"`
}

// Idle is the sleep of a container (docs/idle.md).
type Idle struct {
	After   string            `json:"after"` // time without use
	Asleep  bool              `json:"asleep"`
	Since   time.Time         `json:"since,omitzero"`   // of the last change; none: it has never slept
	Reason  string            `json:"reason,omitempty"` // for which it was woken last
	Changes uint64            `json:"changes"`          // how often it fell asleep and woke, together
	Slept   uint64            `json:"slept"`            // how often
	Woken   map[string]uint64 `json:"woken"`            // how often, for each reason
	Freed   uint64            `json:"freed"`            // bytes given back the last time
}

// HostDirectory is a directory or a file of the host in a container.
type HostDirectory struct {
	Host      string `json:"host"`
	Container string `json:"container"`
	Writable  bool   `json:"writable,omitempty"`
}

// Origins of settings. That of one in a configuration file of the shim is the file's path.
const (
	FromAnnotation = "annotation"
	FromOption     = "runtime option"
	FromDefault    = "default"
)

// Setting is a setting of docs/configuration.md as it applies.
type Setting struct {
	Name   string `json:"name"`             // of the annotation, without its prefix; else of the option
	Option string `json:"option,omitempty"` // of the annotation
	Value  string `json:"value"`            // empty: none
	Origin string `json:"origin"`
}

// Execs of a container that are not deleted.
type Execs struct {
	Started uint64 `json:"started"` // since the container was created
	Known   int    `json:"known"`
	List    []Exec `json:"list,omitempty"` // the first in the order of their ids
}

// MaxExecs is how many execs an answer reports, over all containers: ttrpc carries 4 MiB.
const MaxExecs = 1000

// Exec is one exec.
type Exec struct {
	ID     string        `json:"id"`
	State  string        `json:"state"`
	Pid    int           `json:"pid,omitempty"`
	Exit   *Exit         `json:"exit,omitempty"`
	CPU    time.Duration `json:"cpu_ns,omitempty"`      // while it runs with limits, as Memory
	Memory uint64        `json:"memory_peak,omitempty"` // bytes
}
