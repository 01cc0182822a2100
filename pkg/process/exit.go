// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"syscall"
	"time"

	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/event"
)

// Bounds on what an exit waits for.
const (
	// strayTimeout bounds the killing of what init leaves behind in a PID
	// namespace that it shares. A process in uninterruptible sleep can outlast
	// any bound; the exit is told all the same.
	strayTimeout = 10 * time.Second
	// execTimeout bounds how long init's exit waits for the exits of execs. All
	// of them are being killed by then, so only a process in uninterruptible
	// sleep takes this long.
	execTimeout = 30 * time.Second
	// unreadTimeout bounds how long after its exit the output of an exec is kept
	// for a reader that is away. When containerd dies, or a client, nobody deletes
	// its execs. What init wrote is kept until Delete, however long that takes.
	unreadTimeout = 5 * time.Minute
)

// await is p's waiter. It ends when p is dead, its exit is told and its output
// is handed on.
func (p *Process) await() {
	exit := p.handle.Wait()
	draining, cut := context.WithCancel(context.Background())
	defer cut()
	p.mu.Lock()
	p.cut = cut
	p.mu.Unlock()
	if p.execID == "" {
		p.container.settle()
	}
	p.turn <- struct{}{} // a Start in flight tells its TaskStart first
	p.finish(exit)
	<-p.turn
	if p.execID != "" {
		p.release()
		p.container.countOut()
	}
	p.drain(draining)
}

// settle makes init's exit the last of its container: no exec starts from now
// on, strays are killed, and every exec has told its exit.
func (c *Container) settle() {
	c.mu.Lock()
	c.initDied()
	var idle chan struct{}
	if c.live > 0 {
		idle = make(chan struct{})
		c.idle = idle
	}
	c.mu.Unlock()

	c.killStrays()
	if idle == nil {
		return
	}
	timeout := time.NewTimer(execTimeout)
	defer timeout.Stop()
	select {
	case <-idle:
	case <-timeout.C:
		logger(c.ID()).Errorf("an exec is not dead %v after init; init's exit is told before the exec's", execTimeout)
	}
}

// killStrays ends what the kernel did not end with init.
func (c *Container) killStrays() {
	if c.runtime.OwnsPIDs() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), strayTimeout)
	defer cancel()
	if err := c.runtime.Cgroup().Kill(ctx, syscall.SIGKILL); err != nil {
		logger(c.ID()).WithError(err).Error("kill what init left behind")
	}
}

// finish records the exit and tells it. Called once, by the waiter, with the
// turn held.
func (p *Process) finish(exit Exit) {
	c := p.container
	p.commitExit(exit)
	if p.execID == "" {
		c.oom.Stop()
		c.record(p.handle.Pid(), &exit)
	} else {
		c.oom.Check()
	}
	c.events.Put(event.TaskExit{ContainerID: c.ID(), ID: p.id(), Pid: p.handle.Pid(), Status: exit.Status, At: exit.At})
	close(p.exited)
}

// drain hands on what is written to p's streams and closes them when the last who
// could write is gone. A process that p left behind, and a reader that is slow, or
// away because containerd is being restarted, have until Delete.
func (p *Process) drain(ctx context.Context) {
	defer close(p.drained)
	if err := p.streams.Drain(ctx); err != nil {
		logger(p.container.ID()).WithError(err).WithField("exec", p.execID).Warn("output may be cut off")
	}
	if err := p.streams.Close(); err != nil {
		logger(p.container.ID()).WithError(err).WithField("exec", p.execID).Warn("close standard streams")
	}
}

func logger(containerID string) *log.Entry { return log.L.WithField("container", containerID) }
