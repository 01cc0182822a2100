// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/client"

	"sandbox.internal/shim/integration/harness"
)

// daemon starts a process in a session of its own, which is not its parent's to wait for any more. It makes a file.
func daemon(file string) string {
	return "(setsid sh -c 'touch " + file + "; sleep 1000' >/dev/null 2>&1 </dev/null &); "
}

// family is an exec of three processes: a shell, its child, and a daemon that makes a file.
func (t *task) family(id string) *process {
	t.e.Helper()
	file := "/tmp/" + id
	x := t.exec(id, config{}, nil, "sh", "-c", daemon(file)+"sleep 1000 >/dev/null 2>&1 & echo started; wait")
	t.e.must(x.Start(t.e.ctx), "start "+id)
	x.out.WaitFor(t.e, "started")
	t.file(file)
	return x
}

// wantProcesses waits until Pids lists so many processes.
func (t *task) wantProcesses(n int) {
	t.e.Helper()
	harness.Eventually(t.e, fmt.Sprintf("there are %d processes", n), func() error {
		infos, err := t.Pids(t.e.ctx)
		if err == nil && len(infos) != n {
			err = fmt.Errorf("there are %d", len(infos))
		}
		return err
	})
}

// execCgroups are the directories that the execs of a container have.
func (t *task) execCgroups() []string {
	t.e.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, err := filepath.Glob(filepath.Join(pattern, t.e.namespace, t.container.ID(), "exec-*"))
		t.e.must(err, "look for cgroups")
		found = append(found, dirs...)
	}
	return found
}

// cgroup v1 lets nothing die that is frozen: there it ends with the pause.
func TestExec_DeadlineDuringAPause(t *testing.T) {
	harness.OursOnly(t, "exec-limits")
	e := newEnv(t)
	for _, end := range []string{"resumed", "killed"} {
		c := e.run(end, config{opts: with(execLimits("wall-time=1s"))}, "sleep", "1000")
		x := c.exec("x", config{}, nil, "sh", "-c", daemon("/tmp/daemon")+"echo started; while :; do sleep 1000; done")
		e.must(x.Start(e.ctx), "start exec")
		x.out.WaitFor(t, "started")
		c.file("/tmp/daemon")
		e.must(c.Pause(e.ctx), "pause")
		harness.Eventually(t, "the log tells of the limit", func() error {
			want := `msg="killed: over its limit" container=` + end + " exec=x"
			if log := e.containerd.LogFrom(e.logStart); !strings.Contains(log, want) {
				return fmt.Errorf("log has no %q", want)
			}
			return nil
		})
		wantStatus(c, client.Paused)
		if end == "resumed" {
			e.must(c.Resume(e.ctx), "resume")
			x.wantExit(137)
			c.wantProcesses(1)
			c.kill()
			continue
		}
		e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill the container")
		x.wantExit(137)
		c.wantExit(137)
	}
}

// What CRI does with a probe that takes too long: it kills the exec, and waits for the end of its output.
func TestExec_OutputEndsWhenItIsKilled(t *testing.T) {
	harness.OursOnly(t, "exec-limits")
	e := newEnv(t)
	c := e.run("c1", config{opts: with(execLimits("on"))}, "sleep", "1000")
	// The daemon holds the output.
	x := c.exec("e1", config{}, nil, "sh", "-c", "(setsid sleep 1000 &); echo probing; sleep 1000; true")
	e.must(x.Start(e.ctx), "start e1")
	x.out.WaitFor(t, "probing")
	c.wantProcesses(4)
	began := time.Now()
	x.kill()
	if took := time.Since(began); took > harness.Slow(2*time.Second) {
		t.Errorf("kill and delete took %v although nobody holds the output", took)
	}
	c.wantProcesses(1)
	c.kill()
}

// figures are some of a container's statistics.
type figures struct {
	cpu  time.Duration
	pids uint64
}

func (t *task) figures() (f figures) {
	t.e.Helper()
	switch m := t.metrics().(type) {
	case *cgroup1.Metrics:
		f.cpu, f.pids = time.Duration(m.GetCPU().GetUsage().GetTotal()), m.GetPids().GetCurrent()
	case *cgroup2.Metrics:
		f.cpu, f.pids = time.Duration(m.GetCPU().GetUsageUsec())*time.Microsecond, m.GetPids().GetCurrent()
	}
	return f
}

// An exec that is killed for lack of memory is reported as such, though its own cgroup has no limit.
func TestOOM_KillInTheCgroupOfAnExecIsReported(t *testing.T) {
	harness.OursOnly(t, "exec-limits")
	e := newEnv(t)
	c := e.run("c1", config{opts: with(execLimits("on"), little[0])}, "sleep", "1000")
	keyboard, stdin := typed(e)
	x := c.exec("e1", config{stdin: stdin}, nil, "sh", "-c", "read -r line; exec "+glutton)
	e.must(x.Start(e.ctx), "start e1")
	e.typeLine(keyboard, "go") // not before: the kill may be reported before the start that it came after
	x.wantExit(137)
	c.kill()
	e.wantEvents("c1",
		"create c1 | start c1 | exec-added e1 | exec-start e1 | oom c1 | exit e1 137 | exit c1 137 | delete c1")
}
