// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package processtest

import (
	"slices"

	json "github.com/go-json-experiment/json/v1"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/process"
)

// saved is the state of a process. Runtime keeps the containers themselves.
type saved struct{ PID int }

// Save implements process.RuntimeContainer.
func (*Container) Save(*handover.Saver, process.Handle, bool) (any, error) { return struct{}{}, nil }

// Save implements process.Handle.
func (p *Process) Save() any { return saved{p.pid} }

// Restore implements process.Runtime. The container and its processes take the place of those of the former program,
// which do not die before EndFormer.
func (r *Runtime) Restore(_ *handover.Loader, c process.Config, _ json.RawMessage) (process.RuntimeContainer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.containers, func(one *Container) bool { return one.Config.ID == c.ID })
	former := r.containers[i]
	former.mu.Lock()
	defer former.mu.Unlock()
	made := &Container{Config: c, runtime: r, frozen: former.frozen, kept: former.kept, updated: former.updated}
	made.specs = former.specs
	for _, p := range former.execs {
		made.execs = append(made.execs, p.again())
	}
	if former.init != nil {
		made.init = former.init.again()
	}
	r.containers[i] = made
	r.former = append(append(r.former, former.execs...), former.init)
	return made, nil
}

// EndFormer ends what still waits for the processes of containers that were saved.
func (r *Runtime) EndFormer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.former {
		if p != nil {
			p.Die(0)
		}
	}
}

// again is the process for a successor.
func (p *Process) again() *Process {
	return &Process{runtime: p.runtime, config: p.config, pid: p.pid, died: make(chan int, 1), reaped: make(chan struct{})}
}

// RestoreExec implements process.RuntimeContainer.
func (c *Container) RestoreExec(state json.RawMessage, l *limit.Limits) (process.Handle, process.ExecCgroup, error) {
	var s saved
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.execs, func(p *Process) bool { return p.pid == s.PID })
	if l == nil {
		return c.execs[i], nil, nil
	}
	return c.execs[i], execCgroup{c}, nil
}
