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

type step struct {
	from State
	op   Op
}

// initTable and execTable list every legal step; a step that is missing is refused. testdata/lifecycle.golden is the
// same as a matrix. execTable also applies to an init that Start restores, as long as there is no process. The program
// of an init that Create made runs as soon as its Start has succeeded.
var (
	initTable = map[step]State{
		{Created, OpStart}: Running, {Created, OpExec}: Created, {Created, OpUpdate}: Created,
		{Created, OpSignal}: Created, {Created, OpKill}: Created, {Created, OpResize}: Created,
		{Created, OpCloseIO}: Created, {Created, OpExit}: Stopped, {Created, OpDelete}: Deleted,

		{Running, OpExec}: Running, {Running, OpPause}: Pausing, {Running, OpUpdate}: Running,
		{Running, OpCheckpoint}: Running, {Running, OpSignal}: Running, {Running, OpKill}: Running,
		{Running, OpResize}: Running, {Running, OpCloseIO}: Running, {Running, OpExit}: Stopped,

		{Pausing, OpExec}: Pausing, {Pausing, OpFreeze}: Paused, {Pausing, OpResume}: Running,
		{Pausing, OpSignal}: Pausing, {Pausing, OpKill}: Pausing, {Pausing, OpResize}: Pausing,
		{Pausing, OpCloseIO}: Pausing,

		{Paused, OpResume}: Running, {Paused, OpUpdate}: Paused, {Paused, OpCheckpoint}: Paused,
		{Paused, OpSignal}: Paused, {Paused, OpKill}: Paused, {Paused, OpResize}: Paused,
		{Paused, OpCloseIO}: Paused, {Paused, OpExit}: Stopped,

		{Stopped, OpCloseIO}: Stopped, {Stopped, OpDelete}: Deleted,
	}
	execTable = map[step]State{
		{Created, OpStart}: starting, {Created, OpResize}: Created, {Created, OpCloseIO}: Created,
		{Created, OpDelete}: Deleted,

		{starting, OpRun}: Running, {starting, OpRefuse}: Created, {starting, OpKill}: starting,
		{starting, OpResize}: starting, {starting, OpCloseIO}: starting, {starting, OpExit}: Stopped,

		{Running, OpSignal}: Running, {Running, OpKill}: Running, {Running, OpResize}: Running,
		{Running, OpCloseIO}: Running, {Running, OpExit}: Stopped,

		{Stopped, OpCloseIO}: Stopped, {Stopped, OpDelete}: Deleted,
	}
)

// next returns the state that op leads to from s, or an error that says why op is refused: errdefs.ErrNotFound if the
// process is gone, otherwise errdefs.ErrFailedPrecondition. containerd and its CRI plugin branch on these classes.
func next(table map[step]State, s State, op Op) (State, error) {
	if to, ok := table[step{s, op}]; ok {
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
