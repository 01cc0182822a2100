// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/launcher"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
)

// containerState is a container in the state for a successor. The rest is in libcontainer's state directory.
type containerState struct {
	Cgroup     map[string]string
	OwnsPIDs   bool
	Resources  *specs.LinuxResources // after the last Update
	OwnDevices int
	Init       handleState
	Launch     inspect.Launch
	ExecGroups int64 `json:",omitempty"`

	// The gate of an init that waits for Start.
	Fifo     bool        `json:",omitempty"` // libcontainer has started it
	Held     handover.FD `json:",omitempty"` // the launcher holds it
	Steps    int         `json:",omitempty"`
	HeldStep int         `json:",omitempty"`
}

// handleState is a process.
type handleState struct {
	Pid   int
	Exit  *process.Exit  `json:",omitempty"` // it is reaped
	Used  cgroup.Account `json:",omitzero"`
	Group string         `json:",omitempty"` // name of the cgroup of an exec with limits
}

// Save implements process.RuntimeContainer.
func (c *container) Save(h *handover.Saver, init process.Handle, started bool) (any, error) {
	if init == nil {
		return nil, fmt.Errorf("it is to be restored from a checkpoint: %w", errdefs.ErrUnavailable)
	}
	state := &containerState{
		Cgroup: c.cgroup.Paths(), OwnsPIDs: c.ownsPIDs, Resources: c.resources, OwnDevices: c.ownDevices,
		Launch: c.Launch(), ExecGroups: c.lastExecGroup.Load(),
	}
	state.Init, _ = init.Save().(handleState) // it is a *handle
	switch gate := c.gate.(type) {
	case held:
		if gate.init.Late() {
			return nil, fmt.Errorf("its program has not begun: %w", errdefs.ErrUnavailable)
		}
		if !started && state.Init.Exit == nil {
			var socket *os.File
			socket, state.Steps, state.HeldStep = gate.init.State()
			state.Held = h.Keep(socket)
		}
	case fifo:
		state.Fifo = true
	}
	return state, nil
}

func (h *handle) state() handleState {
	h.reaping.Lock()
	defer h.reaping.Unlock()
	s := handleState{Pid: h.pid, Exit: h.exit}
	if h.exit != nil {
		s.Used = h.exit.Used
	}
	return s
}

// Save implements process.Handle.
func (h *handle) Save() any { return h.state() }

// Save implements process.Handle.
func (e *limitedExec) Save() any {
	s, _ := e.Handle.Save().(handleState) // an exec's own is one
	s.Group = e.group.name
	return s
}

// Restore implements process.Runtime.
func (r *Runtime) Restore(
	l *handover.Loader, c process.Config, state json.RawMessage,
) (process.RuntimeContainer, error) {
	var s containerState
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, err
	}
	made := r.container(c, s.Launch)
	made.cgroup, made.ownsPIDs, made.ownDevices = cgroup.New(s.Cgroup), s.OwnsPIDs, s.OwnDevices
	made.resources, made.former = s.Resources, true
	made.lastExecGroup.Store(s.ExecGroups)
	var err error
	if made.init, err = r.restoreHandle(s.Init); err != nil {
		return nil, err
	}
	init, lives := made.init.child.(*os.Process)
	switch {
	case !lives:
		made.gate = ended{}
	case s.Fifo:
		made.gate = fifo{made}
	case s.Held != 0:
		socket, err := l.File(s.Held, "socket")
		if err != nil {
			return nil, err
		}
		gate, err := launcher.Restore(init, socket, s.Steps, s.HeldStep)
		if err != nil {
			return nil, err
		}
		made.gate = held{gate}
	}
	return made, nil
}

// ended is the gate of an init that has exited.
type ended struct{}

func (ended) open() error { return fmt.Errorf("init is dead: %w", errdefs.ErrFailedPrecondition) }
func (ended) close()      {}

// restoreHandle returns the handle of a child of this process, which nobody reaps before the reaper begins.
func (r *Runtime) restoreHandle(s handleState) (*handle, error) {
	h := &handle{reaper: r.reaper, pid: s.Pid, exit: s.Exit}
	if s.Exit != nil {
		h.exit.Used = s.Used
		h.child = gone{}
		return h, nil
	}
	child, err := os.FindProcess(s.Pid)
	if err != nil {
		return nil, err
	}
	r.reaper.Register(s.Pid)
	h.child = child
	return h, nil
}

// gone is a process that a former program has reaped.
type gone struct{}

func (gone) Wait() (*os.ProcessState, error) { return nil, errors.New("it is reaped") }
func (gone) Signal(os.Signal) error          { return os.ErrProcessDone }

// RestoreExec implements process.RuntimeContainer.
func (c *container) RestoreExec(state json.RawMessage, l *limit.Limits) (process.Handle, process.ExecCgroup, error) {
	var s handleState
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, nil, err
	}
	h, err := c.runtime.restoreHandle(s)
	if err != nil {
		return nil, nil, err
	}
	if l == nil {
		return execProcess{h, c}, nil, nil
	}
	if s.Group == "" {
		return nil, nil, fmt.Errorf("exec %d has limits, and no cgroup: %w", s.Pid, errdefs.ErrInvalidArgument)
	}
	e := &limitedExec{Handle: h, group: c.execGroup(s.Group, l)}
	return e, e, nil
}
