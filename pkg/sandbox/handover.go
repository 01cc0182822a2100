// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/pod"
	"sandbox.internal/shim/pkg/process"
)

// State is the pod in the state for a successor.
type State struct {
	ID, Bundle string
	Config     pod.Config
	CreatedAt  time.Time
	Stage      Stage
	Pid        int           `json:",omitempty"`
	Died       *process.Exit `json:",omitempty"`
	Exit       *process.Exit `json:",omitempty"`
	Abandoned  bool          `json:",omitempty"`
	Pod        *pod.State
}

// Freeze keeps the pod from being started and stopped until thaw. No call is under way. The error is
// errdefs.ErrUnavailable if the pod is being stopped because the process that holds its namespaces has died.
//
// +checklocksignore: thaw unlocks
func (c *Controller) Freeze() (thaw func(), err error) {
	p := c.sandbox.Load()
	if p == nil {
		return func() {}, nil
	}
	busy := fmt.Errorf("sandbox %q: is being stopped: %w", p.id, errdefs.ErrUnavailable)
	if !p.op.TryLock() {
		return nil, busy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.stop != nil {
		p.op.Unlock()
		return nil, busy
	}
	return func() { p.op.Unlock() }, nil
}

// Save returns the state of a frozen pod, or nil if there is none.
func (c *Controller) Save(h *handover.Saver) (*State, error) {
	p := c.sandbox.Load()
	if p == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	saved, err := p.pod.Save(h)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", p.id, err)
	}
	return &State{
		ID: p.id, Bundle: p.bundle, Config: p.config, CreatedAt: p.createdAt, Stage: p.stage, Pid: p.pid, Died: p.died,
		Exit: p.exit, Abandoned: p.abandoned, Pod: saved,
	}, nil
}

// Pod returns the pod that Save has saved, or nil.
func (c *Controller) Pod() Pod {
	if p := c.sandbox.Load(); p != nil {
		return p.pod
	}
	return nil
}

// Restore adds the pod of a state, which is that of s.Pod, to a new Controller.
func (c *Controller) Restore(s *State, restored Pod) (begin func(), err error) {
	if !slices.Contains([]Stage{Created, Running, Stopping, Stopped}, s.Stage) {
		return nil, fmt.Errorf("sandbox %q: stage %q: %w", s.ID, s.Stage, errdefs.ErrInvalidArgument)
	}
	p := &sandbox{
		id: s.ID, bundle: s.Bundle, config: s.Config, createdAt: s.CreatedAt, exited: make(chan struct{}), pod: restored,
		stage: s.Stage, pid: s.Pid, died: s.Died, exit: s.Exit, abandoned: s.Abandoned,
	}
	if p.pid != 0 {
		p.spec = restored.Spec()
	}
	if s.Stage == Stopped {
		if s.Exit == nil {
			return nil, fmt.Errorf("sandbox %q: stopped, without an exit: %w", s.ID, errdefs.ErrInvalidArgument)
		}
		close(p.exited)
	}
	c.tasks.RestorePod(p.id, p.bundle, c.admit(p))
	c.sandbox.Store(p)
	return func() {
		if p.pid != 0 && p.pid != os.Getpid() && s.Stage != Stopped {
			go c.awaitDeath(p) // as in Start
		}
	}, nil
}
