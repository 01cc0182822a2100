// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"cmp"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/limit"
)

// run is the additional state of an exec with limits. Its timers start with the program, and end before the exit is
// published.
type run struct {
	started time.Time    // zero before the program runs
	ended   limit.Reason // the limit for which the run is being killed
	over    bool         // the exit is known
	frozen  bool         // the run is not killed now, but for missed when it thaws
	missed  limit.Reason // None, or why
	timers  []*time.Timer
}

const (
	firstLook = 20 * time.Millisecond  // age of a run when its memory is looked at on v1
	lookAgain = 100 * time.Millisecond // time to the next look at the memory, or after a failure
)

// startLimits starts the timers that end a run over its limits. It is called once, with opLock held, when the program
// runs, or before anything happens to a process of a former program (resumed). The wall time of the run begins with
// requested: on a busy machine the shim learns late that the program runs.
func (p *Process) startLimits(requested time.Time, resumed bool) {
	l := p.limits
	if l == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run.started = requested
	if l.WallTime > 0 {
		p.everyLocked(l.WallTime-time.Since(requested), func() time.Duration { return p.killOverLimit(limit.WallTime) })
	}
	group := p.group.Cgroup()
	if l.CPUTime > 0 {
		used, grown := time.Duration(0), requested
		first := l.NextLook(0, 0, processors())
		if resumed {
			first = 0
		}
		p.everyLocked(first, func() time.Duration {
			usage, err := group.Usage()
			switch {
			case errdefs.IsNotFound(err): // it has ended
				return 0
			case err != nil: // for lack of descriptors, for example
				p.logger().WithError(err).Error("CPU time of a run")
				return lookAgain
			case usage.CPU > used:
				used, grown = usage.CPU, time.Now()
			}
			if next := l.NextLook(used, time.Since(grown), processors()); next > 0 {
				return next
			}
			return p.killOverLimit(limit.CPUTime)
		})
	}
	if l.Memory > 0 && !group.Unified() { // the kernel kills one process, and the others would continue
		p.everyLocked(firstLook, func() time.Duration {
			used, err := group.Account()
			switch {
			case errdefs.IsNotFound(err): // it has ended
				return 0
			case used.OOMKills > 0:
				return p.killOverLimit(limit.Memory)
			}
			return lookAgain
		})
	}
}

// everyLocked calls look after first, and then after the time that look returns, unless that is 0 or the run is over.
//
// +checklocks:p.mu
func (p *Process) everyLocked(first time.Duration, look func() time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(first, func() {
		next := look()
		p.mu.Lock()
		defer p.mu.Unlock()
		if next > 0 && !p.run.over {
			timer.Reset(next)
		}
	})
	p.run.timers = append(p.run.timers, timer)
}

// killOverLimit kills the run for a limit. The first limit counts. It returns 0: nothing more is to be looked at.
func (p *Process) killOverLimit(why limit.Reason) time.Duration {
	p.mu.Lock()
	kill := p.run.ended == limit.None && !p.run.over && !p.run.frozen
	if p.run.frozen {
		p.run.missed = cmp.Or(p.run.missed, why)
	}
	if kill {
		p.run.ended = why
	}
	p.mu.Unlock()
	if !kill {
		return 0
	}
	if err := p.Kill(syscall.SIGKILL); err != nil && !errdefs.IsNotFound(err) { // else it ended just now
		p.logger().WithError(err).Errorf("kill a run that is over its limit %s", why)
	}
	return 0
}

// recordVerdict stops the timers and writes the verdict to its file, before the exit is published.
func (p *Process) recordVerdict(exit Exit) {
	if p.limits == nil {
		return
	}
	p.mu.Lock()
	p.run.over = true
	for _, t := range p.run.timers {
		t.Stop()
	}
	started, ended := p.run.started, p.run.ended
	p.mu.Unlock()
	c := p.container
	if c.config.VerdictFile == "" {
		return
	}
	used := p.group.Account()
	written := p.streams.Written()
	v := limit.Verdict{
		Container: c.ID(), Exec: p.execID, Pid: p.handle.Pid(), Started: started, Ended: exit.At,
		Status: exit.Status, Signal: exit.Signal, Wall: exit.At.Sub(started), CPU: used.CPU,
		MemoryPeak: used.Memory, OOMKills: used.OOMKills, ForksRefused: used.ForksRefused,
		Stdout: limit.Stream(written[0]), Stderr: limit.Stream(written[1]),
	}
	v.User = min(used.User, used.CPU) // cgroup v1 may know it only from samples
	v.System = v.CPU - v.User
	p.limits.Judge(&v, ended, v.OOMKills > 0 && c.isLimitedInMemory())
	if err := v.Write(c.config.VerdictFile); err != nil {
		p.logger().WithError(err).Error("write the verdict")
	}
}

// isLimitedInMemory reports whether the container or a cgroup above it, such as a pod's, has a memory limit. A cgroup
// that is gone, as an empty scope that systemd has removed, counts as limited.
func (c *Container) isLimitedInMemory() bool {
	most, err := c.Cgroup().MemoryLimit()
	return err != nil || most < math.MaxUint64 || !c.Cgroup().Exists()
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
