// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"encoding/json"
	"slices"
	"time"
)

// Op is what a step does, in a word.
type Op = string

// The operations on a container or one of its execs are those of the task service. The last ones stand for several.
const (
	Create   Op = "create"
	Start    Op = "start"
	AddExec  Op = "exec"
	Kill     Op = "kill"
	KillAll  Op = "kill-all"
	Pause    Op = "pause"
	Resume   Op = "resume"
	Update   Op = "update"
	Stats    Op = "stats"
	Pids     Op = "pids"
	State    Op = "state"
	CloseIO  Op = "close-stdin"
	Resize   Op = "resize"
	Wait     Op = "wait"
	Delete   Op = "delete"
	Read     Op = "read"              // what was written to a reader that has stalled, up to the end
	hostKill Op = "kill-from-outside" // of a process, by a signal past containerd

	Burst   Op = "burst"   // execs from beginning to end
	Batch   Op = "batch"   // containers from beginning to end
	Remove  Op = "remove"  // kill, wait and delete, whatever is there
	Pod     Op = "pod"     // a pod through CRI from beginning to end
	Upgrade Op = "upgrade" // a shim executes another release of itself
	Sleep   Op = "sleep"   // a container is put to sleep by hand
	Restart Op = "restart" // containerd ends as its service manager ends it, and starts again
)

// elsewhere reports whether a step concerns no container in a place.
func (s Step) elsewhere() bool {
	return slices.Contains([]Op{Batch, Pod, Restart}, s.Op)
}

// noExec is the exec of a step that concerns init.
const noExec = -1

// Numbers of places in which a worker has containers, and a container execs. The last places share a shim.
const (
	maxContainers = 6
	firstGrouped  = 4
	maxExecs      = 3
)

// Step is an operation, what happens at the same time, and all that was chosen for it.
type Step struct {
	Op        Op      `json:"op"`
	Container int     `json:"container"` // place
	Exec      int     `json:"exec"`      // place, or noExec
	Program   program `json:"program,omitempty"`
	Reuse     bool    `json:"reuse,omitempty"`     // create: with the id of the former container in this place
	HostPID   bool    `json:"hostPID,omitempty"`   // create: in the machine's PID namespace
	Plain     bool    `json:"plain,omitempty"`     // create: execs by libcontainer
	Idle      bool    `json:"idle,omitempty"`      // create: it sleeps when nobody has used it for a second
	Count     int     `json:"count,omitempty"`     // burst and pod: execs; batch: containers
	Shared    bool    `json:"shared,omitempty"`    // batch: all in the pod of bystanders; upgrade: all shims
	Bad       string  `json:"bad,omitempty"`       // upgrade: to a program that cannot succeed the shim
	Members   int     `json:"members,omitempty"`   // pod: containers
	NoPause   bool    `json:"noPause,omitempty"`   // pod: without a pause container
	SharePIDs bool    `json:"sharePIDs,omitempty"` // pod: its containers are in one PID namespace
	With      *Step   `json:"with,omitempty"`      // at the same time, on the same container
	Fault     *Fault  `json:"fault,omitempty"`
}

// FaultKind is what is done to which process.
type FaultKind = string

// The faults.
const (
	KillShim       FaultKind = "kill shim"
	StopShim       FaultKind = "stop shim"
	KillContainerd FaultKind = "kill containerd"
	StopContainerd FaultKind = "stop containerd"
	KillInit       FaultKind = "kill init"
	KillExec       FaultKind = "kill exec"
	StopInit       FaultKind = "stop init"
	KillHolder     FaultKind = "kill holder" // of the namespaces of a pod
	UpgradeShim    FaultKind = "upgrade shim"
)

// Fault is a signal, or an upgrade, at some time after the beginning of a step.
type Fault struct {
	Kind  FaultKind     `json:"kind"`
	After time.Duration `json:"after"`
	For   time.Duration `json:"for,omitempty"` // until SIGCONT
}

// String is the step as -replay reads it.
func (s Step) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// calls is about how many calls of containerd a step makes.
func (s Step) calls() int {
	n := 1
	switch s.Op {
	case Burst, Batch:
		n = 4 * s.Count
	case Pod:
		n = 3 + s.Members*(4+s.Count)
	case Remove:
		n = 3
	default:
	}
	if s.With != nil {
		n += s.With.calls()
	}
	return n
}
