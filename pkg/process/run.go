// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/limit"
)

// run is the additional state of an exec with limits. Its timers start with the program, and end before the exit is
// published.
type run struct {
	limits *limit.Limits

	mu sync.Mutex
	// +checklocks:mu
	started time.Time // zero before the program runs
	// +checklocks:mu
	ended limit.Reason // the limit for which the run is being killed
	// +checklocks:mu
	timers []*time.Timer
	// +checklocks:mu
	over bool // the exit is known
}

// limits returns the limits of p, or nil.
func (p *Process) limits() *limit.Limits {
	if p.run == nil {
		return nil
	}
	return p.run.limits
}

const (
	firstLook    = 20 * time.Millisecond  // age of a run when its memory is looked at on v1
	lookAgain    = 100 * time.Millisecond // time to the next look at the memory, or after a failure
	keptVerdicts = 100                    // of a container
)

// startLimits starts the timers that end a run over its limits. It is called once, with opLock held, when the program
// runs. The wall time of the run begins with requested: on a busy machine the shim learns late that the program runs.
func (p *Process) startLimits(requested time.Time) {
	r := p.run
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = requested
	if t := r.limits.WallTime; t > 0 {
		r.everyLocked(t, func() time.Duration { return p.killOverLimit(limit.WallTime) })
	}
	if r.limits.CPUTime > 0 {
		var used time.Duration // at the last look at which it had grown
		grown := requested
		r.everyLocked(r.limits.NextLook(0, 0, processors()), func() time.Duration {
			usage, err := p.group.Cgroup().Usage()
			switch {
			case errdefs.IsNotFound(err): // it has ended
				return 0
			case err != nil:
				p.logger().WithError(err).Error("CPU time of a run")
				return lookAgain
			case usage.CPU > used:
				used, grown = usage.CPU, time.Now()
			}
			next := r.limits.NextLook(used, time.Since(grown), processors())
			if next == 0 {
				p.killOverLimit(limit.CPUTime)
			}
			return next
		})
	}
	if r.limits.Memory > 0 && !p.group.Cgroup().Unified() {
		// The kernel kills one process, and the others would continue.
		r.everyLocked(firstLook, func() time.Duration {
			used, err := p.group.Cgroup().Account()
			if err == nil && used.OOMKills > 0 {
				return p.killOverLimit(limit.Memory)
			}
			if errdefs.IsNotFound(err) { // it has ended
				return 0
			}
			return lookAgain
		})
	}
}

// everyLocked calls look after first, and then after the time that look returns, unless that is 0 or the run is over.
//
// +checklocks:r.mu
func (r *run) everyLocked(first time.Duration, look func() time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(first, func() {
		next := look()
		r.mu.Lock()
		defer r.mu.Unlock()
		if next > 0 && !r.over {
			timer.Reset(next)
		}
	})
	r.timers = append(r.timers, timer)
}

// killOverLimit kills the run for a limit. The first limit counts. It returns 0: nothing more is to be looked at.
func (p *Process) killOverLimit(why limit.Reason) time.Duration {
	r := p.run
	r.mu.Lock()
	kill := r.ended == limit.None && !r.over
	if kill {
		r.ended = why
	}
	r.mu.Unlock()
	if !kill {
		return 0
	}
	switch err := p.Kill(syscall.SIGKILL); {
	case errdefs.IsNotFound(err): // it ended just now
	case err != nil:
		p.logger().WithError(err).Errorf("kill a run that is over its limit %s", why)
	default:
		p.logger().WithField("limit", why).Info("killed: over its limit")
	}
	return 0
}

// recordVerdict stops the timers, keeps the verdict, and writes it to its file, before the exit is published.
func (p *Process) recordVerdict(exit Exit) {
	r := p.run
	if r == nil {
		return
	}
	r.mu.Lock()
	r.over = true
	for _, t := range r.timers {
		t.Stop()
	}
	started, ended := r.started, r.ended
	r.mu.Unlock()
	c, used := p.container, p.group.Account()
	written := p.streams.Written()
	v := limit.Verdict{
		Container: c.ID(), Exec: p.execID, Pid: p.handle.Pid(), Started: started, Ended: exit.At,
		Status: exit.Status, Signal: exit.Signal, Wall: exit.At.Sub(started), CPU: used.CPU,
		MemoryPeak: used.Memory, OOMKills: used.OOMKills, ForksRefused: used.ForksRefused,
		Stdout: limit.Stream(written[0]), Stderr: limit.Stream(written[1]),
	}
	v.User = min(used.User, used.CPU) // cgroup v1 may know it only from samples
	v.System = v.CPU - v.User
	r.limits.Judge(&v, ended, v.OOMKills > 0 && c.isLimitedInMemory())
	if err := v.Write(c.config.VerdictFile); err != nil {
		p.logger().WithError(err).Error("write the verdict")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.verdicts) >= keptVerdicts {
		c.verdicts = slices.Delete(c.verdicts, 0, 1)
	}
	c.verdicts = append(c.verdicts, v)
}

// isLimitedInMemory reports whether the container or a cgroup above it, such as a pod's, has a memory limit. A cgroup
// that is gone, as an empty scope that systemd has removed, counts as limited.
func (c *Container) isLimitedInMemory() bool {
	most, err := c.Cgroup().MemoryLimit()
	return err != nil || most < math.MaxUint64 || !c.Cgroup().Exists()
}

// Verdicts returns the verdicts on the last runs that have ended, in this order.
func (c *Container) Verdicts() []limit.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.verdicts)
}

// processors is the number of processors of the machine that are online: a container may have more than the shim.
var processors = sync.OnceValue(func() int {
	stat, _ := os.ReadFile("/proc/stat") // it is always there
	return max(bytes.Count(stat, []byte("\ncpu")), 1)
})

// execCgroup returns the cgroup of an exec with limits that was started, or nil.
func (p *Process) execCgroup() ExecCgroup {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group
}
