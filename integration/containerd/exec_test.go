// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func TestExec_RunsInTheContainerAndReportsItsExit(t *testing.T) { testExec(newEnv(t)) }

func testExec(e *env) {
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.startExec("e1", config{}, nil, "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline; echo err >&2; exit 3")
	x.wantExit(3)
	if got, want := x.out.String(), "sleep 1000 "; got != want {
		e.Errorf("stdout = %q, want %q", got, want)
	}
	if got, want := x.err.String(), "err\n"; got != want {
		e.Errorf("stderr = %q, want %q", got, want)
	}
	c.kill()
	e.wantEvents("c1", "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 3 | exit c1 137 | delete c1")
}

func TestExec_DiesWithTheContainerAndReportsBeforeIt(t *testing.T) {
	e := newEnv(t)
	// In a pid namespace of its own the kernel lets the first process end last. In the host's it is for the shim to
	// kill the others, and to tell their exits first.
	for id, opts := range map[string][]oci.SpecOpts{"own": nil, "host": {oci.WithHostNamespace(specs.PIDNamespace)}} {
		c := e.run(id, config{opts: opts}, "sleep", "1000")
		// So many that the container's exit is not the last one by chance.
		const n = 20
		var execs []*process
		for i := range n {
			x := c.startExec(fmt.Sprintf("%s%d", id, i), config{}, nil, "sleep", "1000")
			execs = append(execs, x)
		}
		e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill "+id)
		for _, x := range execs {
			x.wantExit(137)
		}
		if got := c.exit(); got != 137 {
			t.Errorf("exit status of %s = %d, want 137", id, got)
		}
		// The exit is sent when all are dead, not when the container is deleted: CRI may wait long before it does that.
		if left := harness.InCgroup("/" + e.namespace + "/" + id); len(left) > 0 {
			t.Errorf("alive after the exit: %v", left)
		}
		c.delete()
		last := "exit " + id + " 137"
		e.waitEvents(id, last+" | delete "+id)
		before, _, _ := strings.Cut(e.events.Text(id), last)
		if got := strings.Count(before, "| exit "+id); got != n && harness.Runtime() == harness.Ours {
			t.Errorf("%d exits of execs before the container's, want %d: %s", got, n, e.events.Text(id))
		}
	}
}

// daemon starts a process in a session of its own, which is not its parent's to wait for any more. It makes a file.
func daemon(file string) string {
	return "(setsid sh -c 'touch " + file + "; sleep 1000' >/dev/null 2>&1 </dev/null &); "
}

// family is an exec of three processes: a shell, its child, and a daemon that makes a file.
func (t *task) family(id string) *process {
	t.e.Helper()
	file := "/tmp/" + id
	x := t.startExec(id, config{}, nil, "sh", "-c", daemon(file)+"sleep 1000 >/dev/null 2>&1 & echo started; wait")
	x.out.WaitFor(t.e, "started")
	t.file(file)
	return x
}

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
		x := c.startExec("x", config{}, nil, "sh", "-c", daemon("/tmp/daemon")+"echo started; while :; do sleep 1000; done")
		x.out.WaitFor(t, "started")
		c.file("/tmp/daemon")
		e.must(c.Pause(e.ctx), "pause")
		harness.Eventually(t, "SIGKILL for its limit", func() error { // which waits for the thaw on cgroup v1
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", x.Pid()))
			if err == nil && !regexp.MustCompile(`(?m)^ShdPnd:\t[0-9a-f]+[13579bdf][0-9a-f]{2}$`).Match(status) {
				return fmt.Errorf("status of the exec:\n%s", status)
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

// figures are some of a container's statistics.
type figures struct {
	cpu                           time.Duration
	pids, memory, limit, oomKills uint64
}

func figuresOf(metrics any) (f figures) {
	switch m := metrics.(type) {
	case *cgroup1.Metrics:
		f = figures{
			time.Duration(m.GetCPU().GetUsage().GetTotal()), m.GetPids().GetCurrent(), m.GetMemory().GetUsage().GetUsage(),
			m.GetMemory().GetUsage().GetLimit(), m.GetMemoryOomControl().GetOomKill(),
		}
	case *cgroup2.Metrics:
		f = figures{
			time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond, m.GetPids().GetCurrent(), m.GetMemory().GetUsage(),
			m.GetMemory().GetUsageLimit(), m.GetMemoryEvents().GetOomKill(),
		}
	}
	return f
}

func (t *task) figures() figures {
	t.e.Helper()
	return figuresOf(t.metrics())
}
