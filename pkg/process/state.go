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
	Created State = iota // set up; its program does not run yet
	Running
	Pausing // a freeze is under way; shown by [Process.Status], never stored
	Paused
	Stopped // exited; its exit status is known
	Deleted
)

var stateNames = [...]string{"created", "running", "pausing", "paused", "stopped", "deleted"}

func (s State) String() string { return stateNames[s] }

// Op is what a caller, or the kernel by an exit, does to a process.
type Op int

// The operations. testdata/lifecycle.golden shows each in every state.
const (
	OpStart Op = iota
	OpExec
	OpPause
	OpResume
	OpUpdate
	OpCheckpoint
	OpKill
	OpResize
	OpCloseIO
	OpExit
	OpDelete
)

var opNames = [...]string{
	"start", "exec", "pause", "resume", "update", "checkpoint", "kill", "resize", "close stdin", "exit", "delete",
}

func (o Op) String() string { return opNames[o] }

type step struct {
	from State
	op   Op
}

// initTable and execTable list every legal step; a step that is missing is refused. testdata/lifecycle.golden is the
// same as a matrix. execTable also applies to an init that Start restores, as long as there is no process.
var (
	initTable = map[step]State{
		{Created, OpStart}: Running, {Created, OpExec}: Created, {Created, OpUpdate}: Created,
		{Created, OpKill}: Created, {Created, OpResize}: Created, {Created, OpCloseIO}: Created,
		{Created, OpExit}: Stopped, {Created, OpDelete}: Deleted,

		{Running, OpExec}: Running, {Running, OpPause}: Paused, {Running, OpUpdate}: Running,
		{Running, OpCheckpoint}: Running, {Running, OpKill}: Running, {Running, OpResize}: Running,
		{Running, OpCloseIO}: Running, {Running, OpExit}: Stopped,

		{Paused, OpResume}: Running, {Paused, OpUpdate}: Paused, {Paused, OpCheckpoint}: Paused,
		{Paused, OpKill}: Paused, {Paused, OpResize}: Paused, {Paused, OpCloseIO}: Paused,
		{Paused, OpExit}: Stopped,

		{Stopped, OpCloseIO}: Stopped, {Stopped, OpDelete}: Deleted,
	}
	execTable = map[step]State{
		{Created, OpStart}: Running, {Created, OpResize}: Created, {Created, OpCloseIO}: Created,
		{Created, OpExit}: Stopped, {Created, OpDelete}: Deleted,

		{Running, OpKill}: Running, {Running, OpResize}: Running, {Running, OpCloseIO}: Running,
		{Running, OpExit}: Stopped,

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
	case s == Stopped && op == OpKill:
		return s, fmt.Errorf("%v: process already finished: %w", op, errdefs.ErrNotFound)
	}
	return s, fmt.Errorf("cannot %v: the process is %v: %w", op, s, errdefs.ErrFailedPrecondition)
}
