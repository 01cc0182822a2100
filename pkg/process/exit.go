// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"syscall"
	"time"

	"sandbox.internal/shim/pkg/event"
)

// Bounds on what an exit waits for. Only a process in uninterruptible sleep takes so long to die.
const (
	remainingTimeout = 10 * time.Second // for processes that were killed
	execExitTimeout  = 30 * time.Second // of init, for the exits of execs, which are being killed
	unreadTimeout    = 5 * time.Minute  // for a reader of the output of an exec: nobody deletes the execs of a dead client
)

// await is p's waiter. It ends when the exit is published and the output is drained; Delete joins it through drained.
// If a former program has published the exit, the draining has begun.
func (p *Process) await() {
	published := p.draining != nil
	if !published {
		exit := p.handle.Wait()
		p.checkOOM(exit) // at once: systemd removes an empty scope, and its counters
		p.beginDraining()
		if p.execID == "" {
			p.container.finishExecs()
		}
		p.opLock <- struct{}{} // a Start in flight publishes its TaskStart first
		p.recordVerdict(exit)
		p.publishExit(exit)
		p.unlockOp()
	}
	defer p.stopDraining()
	if p.group != nil {
		p.group.Release()
	}
	if p.execID != "" && !published {
		p.container.exits.leave()
	}
	p.drain(p.draining)
	if p.execID != "" {
		p.unuse() // what it left behind may write until its output ends, or is deleted
	}
}

func (p *Process) beginDraining() {
	p.draining, p.stopDraining = context.WithCancel(context.Background())
}

// checkOOM reports an OOM kill that was not reported yet. The status of a shell whose last command SIGKILL has ended is
// the same as that of one that was killed.
func (p *Process) checkOOM(exit Exit) {
	known := p.wasKilled() || p.container.checkpointed.Load() // who sent SIGKILL
	if exit.Status == 128+int(syscall.SIGKILL) && p.execID == "" && !known {
		p.container.oom.CheckKilled()
		return
	}
	p.container.oom.Check()
}

// finishExecs makes init's exit the last of its container: no exec starts from now on, strays are killed, and it waits
// until the exit of every exec is published.
func (c *Container) finishExecs() {
	c.starts.close(errInitExited)
	c.exits.close(errInitExited)
	c.killRemaining()
	ctx, cancel := context.WithTimeout(context.Background(), execExitTimeout)
	defer cancel()
	if c.exits.empty(ctx) != nil {
		logger(c.ID()).Errorf("an exec is not dead %v after init; init's exit is told before the exec's", execExitTimeout)
	}
}

// killRemaining kills what the kernel did not kill with init.
func (c *Container) killRemaining() {
	ctx, cancel := context.WithTimeout(context.Background(), remainingTimeout)
	defer cancel()
	if err := c.runtime.KillRemaining(ctx); err != nil {
		logger(c.ID()).WithError(err).Error("kill what init left behind")
		for _, p := range c.allExecs() {
			_ = p.Kill(syscall.SIGKILL) // it may be dead, or have never begun
		}
	}
}

// publishExit commits the exit and publishes it. The waiter calls it once, with opLock held.
func (p *Process) publishExit(exit Exit) {
	c := p.container
	p.mu.Lock()
	_ = p.commitLocked(OpExit) // it runs
	p.exit = exit
	p.mu.Unlock()
	if p.execID == "" {
		c.oom.Stop()
		c.publishOOMs()
		c.config.Record.Exited(exit)
	} else {
		c.oom.Check()
	}
	c.events.Put(event.TaskExit{
		ContainerID: c.ID(), ID: p.id(), Pid: p.handle.Pid(), Status: exit.Status, At: exit.At,
	})
	close(p.exited)
}

// drain passes on what is written to p's streams and closes them when the last writer is gone. Processes that p left
// behind and slow readers have until Delete. Output of an exec that nobody reads is kept for unreadTimeout.
func (p *Process) drain(ctx context.Context) {
	defer close(p.drained)
	if err := p.streams.Drain(ctx); err != nil {
		p.logger().WithError(err).Warn("output may be cut off")
	}
	if err := p.streams.Close(); err != nil {
		p.logger().WithError(err).Warn("close standard streams")
	}
}
