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

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
)

// run is the additional state of an exec with limits. Its timers start with the program, and end before the exit is
// published. Each calls its function in a goroutine of its own, which changes nothing once the run is over.
type run struct {
	limits *limit.Limits

	mu sync.Mutex
	// +checklocks:mu
	started time.Time // zero before the program runs
	// +checklocks:mu
	used time.Duration // CPU time of the cgroup at the last look at which it had grown
	// +checklocks:mu
	grown time.Time // when that was
	// +checklocks:mu
	ended limit.Reason // the limit for which the run is being killed
	// +checklocks:mu
	wall *time.Timer
	// +checklocks:mu
	cpu *time.Timer
	// +checklocks:mu
	oom *time.Timer
	// +checklocks:mu
	watch *cgroup.OOMWatch // on v1, where the kernel kills one process, after watchAfter; nil otherwise
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

// startLimits starts the timers that end a run over its limits. It is called once, with opLock held, when the program
// runs. The wall time of the run begins with requested: on a busy machine the shim learns late that the program runs.
func (p *Process) startLimits(requested time.Time) {
	r := p.run
	if r == nil {
		return
	}
	firstLook := r.limits.NextLook(0, 0, processors())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started, r.grown = requested, requested
	if t := r.limits.WallTime; t > 0 {
		r.wall = time.AfterFunc(t, func() { p.killOverLimit(limit.WallTime) })
	}
	if r.limits.CPUTime > 0 {
		r.cpu = time.AfterFunc(firstLook, p.lookAtCPUTime)
	}
	if r.limits.Memory > 0 && !p.group.Cgroup().Unified() {
		r.oom = time.AfterFunc(watchAfter, p.watchMemory)
	}
}

const (
	// watchAfter is the age from which the memory of a run is watched on v1. The verdict on a shorter run has only the
	// kernel's counter.
	watchAfter = 20 * time.Millisecond
	// killTime is longer than the kernel takes to kill after it signals that a cgroup is out of memory.
	killTime = time.Second
	// lookAgain is the wait before another attempt to read the CPU time of a run, if that failed, for example for lack
	// of descriptors.
	lookAgain = 100 * time.Millisecond
	// keptVerdicts is the number of verdicts that a container keeps.
	keptVerdicts = 100
)

// watchMemory ends a run when the kernel has killed one of its processes: on v1 the others would continue.
func (p *Process) watchMemory() {
	watch, err := p.group.Cgroup().WatchOOM(func() { p.killOverLimit(limit.Memory) })
	if err != nil {
		if !errdefs.IsNotFound(err) { // it has ended
			p.logger().WithError(err).Error("watch the memory of an exec")
		}
		return
	}
	r := p.run
	r.mu.Lock()
	over := r.over
	if !over {
		r.watch = watch // recordVerdict stops it
	}
	r.mu.Unlock()
	if over {
		watch.Stop()
		return
	}
	if a, err := p.group.Cgroup().Account(); err == nil && a.OOMKills > 0 { // killed before the watch
		p.killOverLimit(limit.Memory)
		return
	}
	// The kernel signals before it kills. If the watch began in between, it gets no signal.
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.oom = time.AfterFunc(killTime, watch.Check)
	}
}

// lookAtCPUTime ends a run that has used up its CPU time, or looks again at the time when it may have.
func (p *Process) lookAtCPUTime() {
	used, err := p.group.Cgroup().Usage()
	if errdefs.IsNotFound(err) {
		return // it has ended
	}
	r, n := p.run, processors()
	r.mu.Lock()
	next := lookAgain
	if err == nil {
		if used.CPU > r.used {
			r.used, r.grown = used.CPU, time.Now()
		}
		next = r.limits.NextLook(used.CPU, time.Since(r.grown), n)
	}
	if next > 0 && !r.over {
		r.cpu.Reset(next)
	}
	r.mu.Unlock()
	if err != nil {
		p.logger().WithError(err).Error("CPU time of a run")
	} else if next == 0 {
		p.killOverLimit(limit.CPUTime)
	}
}

// killOverLimit kills the run for a limit. The first limit counts.
func (p *Process) killOverLimit(why limit.Reason) {
	r := p.run
	r.mu.Lock()
	kill := r.ended == limit.None && !r.over
	if kill {
		r.ended = why
	}
	r.mu.Unlock()
	if !kill {
		return
	}
	switch err := p.Kill(syscall.SIGKILL); {
	case errdefs.IsNotFound(err): // it ended just now
	case err != nil:
		p.logger().WithError(err).Errorf("kill a run that is over its limit %s", why)
	default:
		p.logger().WithField("limit", why).Info("killed: over its limit")
	}
}

// recordVerdict stops the timers and the watch, keeps the verdict, and writes it to its file. The waiter calls it, with
// opLock held, when the run has exited and before its exit is published.
func (p *Process) recordVerdict(exit Exit) {
	r := p.run
	if r == nil {
		return
	}
	r.mu.Lock()
	r.over = true
	for _, t := range []*time.Timer{r.wall, r.cpu, r.oom} {
		if t != nil {
			t.Stop()
		}
	}
	started, ended, watch := r.started, r.ended, r.watch
	r.mu.Unlock()
	if watch != nil {
		watch.Stop()
	}

	c, used := p.container, p.group.Account()
	written := p.streams.Written()
	v := limit.Verdict{
		Container: c.ID(), Exec: p.execID, Pid: p.handle.Pid(), Started: started, Ended: exit.At,
		Status: exit.Status, Signal: exit.Signal, Wall: exit.At.Sub(started), CPU: used.CPU,
		MemoryPeak: used.Memory, OOMKills: used.OOMKills, ForksRefused: used.ForksRefused,
		Stdout: limit.Stream(written[0]), Stderr: limit.Stream(written[1]),
	}
	v.SplitCPU(used.User, used.System)
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

// isLimitedInMemory reports whether the container or a cgroup above it, such as a pod's, has a memory limit. The limit
// of a cgroup that is gone, as an empty scope that systemd has removed, is not known; then it is taken for limited.
func (c *Container) isLimitedInMemory() bool {
	most, err := c.Cgroup().MemoryLimit()
	return err != nil || most < math.MaxUint64 || !c.Cgroup().Exists()
}

// Verdicts returns the verdicts on the last execs that had limits and have ended, in this order.
func (c *Container) Verdicts() []limit.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.verdicts)
}

// processors returns the number of processors of the machine that are online: a container may have more than the shim.
var processors = sync.OnceValue(func() int {
	stat, _ := os.ReadFile("/proc/stat") // it is always there
	return max(bytes.Count(stat, []byte("\ncpu")), 1)
})
