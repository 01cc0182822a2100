// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// limit lets the deadline of an exec begin. Called with p's turn held, before
// its waiter starts.
func (p *Process) limit() {
	timeout := p.container.config.ExecTimeout
	if timeout == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = time.AfterFunc(timeout, func() { // release stops it; Kill does not block for long
		entry := logger(p.container.ID()).WithField("exec", p.execID)
		until := ""
		if p.container.display() != Running { // cgroup v1 keeps what is frozen from dying, too
			until = "; the container is paused, so it may end when that is resumed"
		}
		switch err := p.Kill(syscall.SIGKILL); {
		case errdefs.IsNotFound(err): // it ended just now
		case err != nil:
			entry.WithError(err).Errorf("kill an exec that ran for longer than exec-timeout, which is %v", timeout)
		default:
			entry.Warnf("exec killed: it ran for longer than exec-timeout, which is %v%s", timeout, until)
		}
	})
}

// release ends the deadline of an exec, tells what it used, and lets go of its
// cgroup. Called once, by its waiter, after the exit was told.
func (p *Process) release() {
	p.mu.Lock()
	if p.deadline != nil {
		p.deadline.Stop()
	}
	exit := p.exit
	p.mu.Unlock()
	g, ok := p.handle.(Grouped)
	if !ok {
		return
	}
	u := g.Usage()
	entry := logger(p.container.ID()).WithField("exec", p.execID).WithField("status", exit.Status).WithField("cpu", u.CPU)
	if u.CgroupTotal {
		entry = entry.WithField("memory", u.Memory)
	} else {
		entry = entry.WithField("memory of the largest process", u.Memory)
	}
	entry.Info("exec ended")
	g.Release()
}

// Usage is what an exec in a cgroup of its own has used, with all that it
// started; false for others, and before it lives.
func (p *Process) Usage() (Usage, bool) {
	p.mu.Lock()
	g, ok := p.handle.(Grouped)
	p.mu.Unlock()
	if !ok {
		return Usage{}, false
	}
	return g.Usage(), true
}

// ExecUsage is the Usage of each exec that has one and was not deleted, by its id.
func (c *Container) ExecUsage() map[string]Usage {
	used := map[string]Usage{}
	for _, p := range c.processes() {
		if u, ok := p.Usage(); ok {
			used[p.execID] = u
		}
	}
	return used
}
