// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// State is a stage in the life of a process.
type State int

// The states. A process that is being created has none yet.
const (
	Created  State = iota // set up; its program does not run yet
	starting              // the Start of an exec, or a restore, is under way; shown as Created
	Running
	Pausing // a freeze is under way
	Paused
	Stopped // exited; its exit status is known
	Deleted
)

var stateNames = [...]string{"created", "starting", "running", "pausing", "paused", "stopped", "deleted"}

func (s State) String() string { return stateNames[s] }

// shown is the state that clients know.
func (s State) shown() State {
	if s == starting {
		return Created
	}
	return s
}

// Op is an operation of a caller on a process, or a step of it, or an exit.
type Op int

// The operations. testdata/lifecycle.golden shows each in every state.
const (
	OpStart  Op = iota
	OpRun       // the program of a starting process runs
	OpRefuse    // a Start is refused before anything was done
	OpExec
	OpPause
	OpFreeze // all processes are frozen
	OpResume
	OpUpdate
	OpCheckpoint
	OpSignal // with a signal other than SIGKILL
	OpKill
	OpResize
	OpCloseIO
	OpExit
	OpDelete
)

var opNames = [...]string{
	"start", "run", "refuse", "exec", "pause", "freeze", "resume", "update", "checkpoint", "signal", "kill", "resize",
	"close stdin", "exit", "delete",
}

func (o Op) String() string { return opNames[o] }

// initTable and execTable list every legal step; a step that is missing is refused. execTable also applies to an init
// that Start restores, as long as there is no process.
var (
	initTable = map[State]map[Op]State{
		Created: {
			OpStart: Running, OpExec: Created, OpUpdate: Created, OpSignal: Created, OpKill: Created,
			OpResize: Created, OpCloseIO: Created, OpExit: Stopped, OpDelete: Deleted,
		},
		Running: {
			OpExec: Running, OpPause: Pausing, OpUpdate: Running, OpCheckpoint: Running, OpSignal: Running, OpKill: Running,
			OpResize: Running, OpCloseIO: Running, OpExit: Stopped,
		},
		Pausing: {
			OpExec: Pausing, OpFreeze: Paused, OpResume: Running, OpSignal: Pausing, OpKill: Pausing,
			OpResize: Pausing, OpCloseIO: Pausing,
		},
		Paused: {
			OpResume: Running, OpUpdate: Paused, OpCheckpoint: Paused, OpSignal: Paused, OpKill: Paused,
			OpResize: Paused, OpCloseIO: Paused, OpExit: Stopped,
		},
		Stopped: {OpCloseIO: Stopped, OpDelete: Deleted},
	}
	execTable = map[State]map[Op]State{
		Created: {OpStart: starting, OpResize: Created, OpCloseIO: Created, OpDelete: Deleted},
		starting: {
			OpRun: Running, OpRefuse: Created, OpKill: starting, OpResize: starting, OpCloseIO: starting, OpExit: Stopped,
		},
		Running: {OpSignal: Running, OpKill: Running, OpResize: Running, OpCloseIO: Running, OpExit: Stopped},
		Stopped: {OpCloseIO: Stopped, OpDelete: Deleted},
	}
)

// next returns the state that op leads to from s. If op is refused the error is errdefs.ErrNotFound if the process is
// gone, otherwise errdefs.ErrFailedPrecondition. containerd and its CRI plugin branch on these classes.
func next(table map[State]map[Op]State, s State, op Op) (State, error) {
	if to, ok := table[s][op]; ok {
		return to, nil
	}
	switch {
	case s == Deleted:
		return s, fmt.Errorf("%v: already deleted: %w", op, errdefs.ErrNotFound)
	case s == Stopped && (op == OpSignal || op == OpKill):
		return s, fmt.Errorf("%v: process already finished: %w", op, errdefs.ErrNotFound)
	}
	return s, fmt.Errorf("cannot %v: the process is %v: %w", op, s.shown(), errdefs.ErrFailedPrecondition)
}
