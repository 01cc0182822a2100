// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// verdict is the content of a verdict file.
type verdict struct {
	Container, Exec string
	Pid, Status     int
	Signal          int
	Limit           string
	Started, Ended  time.Time
	Wall            time.Duration `json:"wall_ns"`
	CPU             time.Duration `json:"cpu_ns"`
	User            time.Duration `json:"user_ns"`
	System          time.Duration `json:"system_ns"`
	MemoryPeak      uint64        `json:"memory_peak"`
	OOMKills        uint64        `json:"oom_kills"`
	ForksRefused    uint64        `json:"forks_refused"`
	Stdout, Stderr  struct{ Written, Dropped int64 }
}

// judge has runs with verdicts in a directory.
type judge struct {
	*env
	dir string
}

func newJudge(t *testing.T) judge {
	t.Helper()
	harness.OursOnly(t, "exec-limits")
	j := judge{env: newEnv(t), dir: publicDir(t)}
	j.allow("verdict-file")
	return j
}

// limited are annotations for limits of execs, and for files with the verdicts.
func (j judge) limited(limits string) oci.SpecOpts {
	return oci.Compose(execLimits(limits), oci.WithAnnotations(map[string]string{
		"io.containerd.sandbox.v1/verdict-file": j.dir + "/{id}:{exec}.json",
	}))
}

// execLimits are limits of execs, without files.
func execLimits(limits string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{"io.containerd.sandbox.v1/exec-limits": limits})
}

func (j judge) verdict(id, exec string) (v verdict) {
	j.Helper()
	file := filepath.Join(j.dir, id+":"+exec+".json")
	text, err := os.ReadFile(file)
	j.must(err, "read the verdict")
	j.must(json.Unmarshal(text, &v), "decode "+string(text))
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		j.Errorf("%s: mode %v, %v, want 0600", file, info.Mode(), err)
	}
	return v
}

// run runs a program as an exec and returns its verdict, which must be there when its exit is told.
func (j judge) exec(c *task, id string, env []string, program string) (*process, verdict) {
	j.Helper()
	x := c.process.e.asExec(c, id, env, program)
	status := x.exit()
	v := j.verdict(c.container.ID(), id)
	if v.Status != int(status) || v.Exec != id || v.Container != c.container.ID() || v.Pid == 0 {
		j.Errorf("%s: verdict %+v, exit status %d", id, v, status)
	}
	if off := v.Ended.Sub(v.Started) - v.Wall; off.Abs() > 50*time.Millisecond { // the clock may be set meanwhile
		j.Errorf("%s: from %v to %v are not %v", id, v.Started, v.Ended, v.Wall)
	}
	x.delete()
	return x, v
}

func (e *env) asExec(c *task, id string, env []string, program string) *process {
	e.Helper()
	x := c.startExec(id, config{}, func(p *specs.Process) { p.Env = append(p.Env, env...) }, "sh", "-c", program)
	return x
}

const spin = "while :; do :; done"

func TestLimit_EndsARun(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited(
		"wall-time=20s,cpu-time=10s,memory=64Mi,pids=32,output=64Ki",
	))}, "sleep", "1000")
	before, cpu, runs := c.figures().cpu, time.Duration(0), 0
	for _, tt := range []struct {
		id, program string
		env         []string
		want        string               // limit, signal, status
		check       func(v verdict) bool // whether its figures are right
	}{
		{"exits", "exit 3", nil, " 0 3", nil},
		{"segfaults", "kill -SEGV $$", nil, " 11 139", nil},
		{"sleeps", "sleep 1000", []string{"WALL_TIME=300ms"}, "wall-time 9 137", func(v verdict) bool {
			return v.Wall >= 300*time.Millisecond && v.Wall <= harness.Slow(400*time.Millisecond)
		}},
		{"ignores SIGTERM", "trap '' TERM HUP INT; while :; do sleep 1; done", []string{"WALL_TIME=300ms"}, "wall-time 9 137", nil},
		{"leaves the session", "setsid sh -c 'touch /tmp/away; sleep 1000' & sleep 1000", []string{"WALL_TIME=300ms"}, "wall-time 9 137", nil},
		{"stops itself", "kill -STOP $$", []string{"WALL_TIME=300ms"}, "wall-time 9 137", nil},
		{"spins", spin, []string{"CPU_TIME=500ms"}, "cpu-time 9 137", nil},
		{"spins twice", "(" + spin + ") & " + spin, []string{"CPU_TIME=500ms"}, "cpu-time 9 137", nil},
		{"allocates", glutton, nil, "memory 9 137", func(v verdict) bool { return v.OOMKills > 0 && v.MemoryPeak > 0 && v.MemoryPeak <= 64*mib }},
		// Linux knows the peak since 5.19.
		{"allocates less", "dd if=/dev/zero of=/dev/null bs=40M count=1", nil, " 0 0", func(v verdict) bool { return v.MemoryPeak == 0 || v.MemoryPeak >= 40*mib && v.MemoryPeak <= 44*mib }},
		{"allocates in a child", glutton + "; sleep 1000", nil, "memory 9 137", nil},
		{"forks", "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done", nil, "pids", func(v verdict) bool { return v.ForksRefused > 0 }},
		{"bombs", "b() { b | b & }; b; sleep 1000", []string{"WALL_TIME=1s"}, "", func(v verdict) bool { return v.ForksRefused > 0 && (v.Limit == "pids" || v.Limit == "wall-time") }},
		{"prints", "yes | head -c 100000", nil, " 0 0", func(v verdict) bool {
			return v.Stdout.Written == 100000 && v.Stdout.Dropped == 100000-65536 && v.Stderr.Written == 0
		}},
	} {
		for i := range tt.env {
			tt.env[i] = "SANDBOX_LIMIT_" + tt.env[i]
		}
		x, v := j.exec(c, strings.ReplaceAll(tt.id, " ", "-"), tt.env, tt.program)
		cpu, runs = cpu+v.CPU, runs+1
		if got := fmt.Sprintf("%s %d %d", v.Limit, v.Signal, v.Status); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q: %+v", tt.id, got, tt.want, v)
		}
		if tt.check != nil && !tt.check(v) {
			t.Errorf("%s: wrong figures in %+v", tt.id, v)
		}
		if n := len(x.out.String()); n > 65536 {
			t.Errorf("%s: %d bytes of output", tt.id, n)
		}
		c.wantProcesses(1)
	}
	// What the verdicts say is what the kernel counts, but for a tick in each.
	if all := c.figures().cpu - before; (all - cpu).Abs() > all/100+time.Duration(runs)*harness.Slow(10*time.Millisecond) {
		t.Errorf("the container used %v of CPU time, %v by the %d verdicts", all, cpu, runs)
	}

	// The container is unharmed, and so is the next exec.
	x, v := j.exec(c, "next", nil, "echo fine")
	if x.out.String() != "fine\n" || v.Status != 0 || v.Limit != "" || v.Stdout.Written != 5 {
		t.Errorf("next: %q, %+v", x.out, v)
	}
	if left := c.execCgroups(); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
	c.kill()
}

// The limit of CPU time holds to 10 ms, or 1 %. A shim that waits for a CPU itself looks later, so the best of three counts.
func TestLimit_CPUTimeIsExact(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("cpu-time=2s"))}, "sleep", "1000")
	for id, tt := range map[string]struct {
		env  []string
		most time.Duration
	}{
		"short": {[]string{"SANDBOX_LIMIT_CPU_TIME=200ms"}, 210 * time.Millisecond},
		"long":  {nil, 2020 * time.Millisecond},
	} {
		for i, program := range []string{spin, "(" + spin + ") & (" + spin + ") & " + spin} {
			_, v := j.exec(c, fmt.Sprintf("%s-%d", id, i), tt.env, program)
			for again := range 2 {
				if v.CPU > harness.Slow(tt.most) {
					t.Logf("%s-%d: %v, want at most %v: once more", id, i, v.CPU, tt.most)
					_, v = j.exec(c, fmt.Sprintf("%s-%d-%d", id, i, again), tt.env, program)
				}
			}
			least := tt.most - max(tt.most/101, 10*time.Millisecond)
			if v.Limit != "cpu-time" || v.CPU < least || v.CPU > harness.Slow(tt.most) {
				t.Errorf("%s-%d: %v, want from %v to %v: %+v", id, i, v.CPU, least, tt.most, v)
			}
			if v.User+v.System != v.CPU || v.User == 0 {
				t.Errorf("%s-%d: user and system are no parts of %v: %+v", id, i, v.CPU, v)
			}
		}
	}
	c.kill()
}

// What holds for a container holds with limits of its execs too, for which init is in a cgroup of its own on v2.
func TestLimit_TheContainerIsAsBefore(t *testing.T) {
	j := newJudge(t)
	personality := spec(func(s *oci.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} })
	for id, opts := range map[string][]oci.SpecOpts{
		"launcher": nil, "fallback": {personality}, "hostpids": {oci.WithHostNamespace(specs.PIDNamespace)},
	} {
		c := j.run(id, config{opts: append(append(with(j.limited("pids=20")), little...), opts...)}, "sleep", "1000")
		before := c.figures()
		x := c.family("e1") // three processes
		c.wantProcesses(4)
		harness.Eventually(t, id+": statistics count 4 processes", func() error { // one that made a file may end just now
			if got := c.figures().pids; got != 4 {
				return fmt.Errorf("they count %d", got)
			}
			return nil
		})

		j.must(c.Pause(j.ctx), "pause")
		wantStatus(c, client.Paused)
		j.must(c.Resume(j.ctx), "resume")
		j.must(x.Kill(j.ctx, syscall.SIGTERM), "SIGTERM to the first process alone")
		if got := x.exit(); got != 143 {
			t.Errorf("%s: status of e1 = %d, want 143", id, got)
		}
		if v := j.verdict(id, "e1"); v.Limit != "" || v.Signal != 15 {
			t.Errorf("%s: verdict on e1 %+v", id, v)
		}
		x.delete()
		c.wantProcesses(1) // what it left is gone

		// The memory of the container, by an exec that has no limit of its own.
		if _, v := j.exec(c, "glutton", nil, "exec "+glutton); v.Limit != "memory" || v.Status != 137 {
			t.Errorf("%s: verdict on a glutton %+v", id, v)
		}
		j.waitEvents(id, "oom")
		memory := int64(200 * mib)
		j.must(c.Update(j.ctx, client.WithResources(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory}})), "update")
		if _, v := j.exec(c, "modest", nil, "exec "+glutton); v.Status != 0 || v.MemoryPeak < 128*mib {
			t.Errorf("%s: verdict after an update %+v", id, v)
		}
		if after := c.figures(); after.cpu <= before.cpu {
			t.Errorf("%s: CPU time %v, before %v", id, after.cpu, before.cpu)
		}

		y := c.family("e2")
		j.must(c.Task.Kill(j.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
		if got := y.exit(); got != 137 {
			t.Errorf("%s: status of e2 = %d, want 137", id, got)
		}
		y.delete()
		c.wantExit(137)
	}
}

// A program that asks for its limits finds those of the container.
func TestLimit_CgroupNamespaceShowsTheContainersLimits(t *testing.T) {
	if cgroups.Mode() != cgroups.Unified {
		harness.Lacking(t, "cgroup2", "cgroup v2 with controllers")
	}
	harness.OursOnly(t, "exec-limits")
	e := newEnv(t)
	const show = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cgroup.procs /proc/self/cgroup"
	c := e.run("c1", config{opts: append(with(execLimits("memory=8Mi"),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}), oci.WithMounts([]specs.Mount{
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}},
		})), little...)}, "sh", "-c", show+"; sleep 1000")
	c.out.WaitFor(t, "/init")
	if got, want := c.out.String(), fmt.Sprintf("%d\n0::/init\n", 24*mib); got != want {
		t.Errorf("init sees %q, want %q", got, want)
	}
	x := e.asExec(c, "e1", nil, show)
	x.wantExit(0)
	// The first number was that of the trial, when the container was made.
	if got, want := x.out.String(), fmt.Sprintf("%d\n0::/exec-2\n", 24*mib); got != want {
		t.Errorf("an exec sees %q, want %q", got, want)
	}
	c.kill()
}

// Fifty a second for a minute leave nothing: SHIM_TEST_RUNS=3000. Otherwise it is fewer, some at a time.
func TestLimit_ManyRunsLeaveNothing(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("wall-time=20s,cpu-time=5s,memory=64Mi,pids=32,output=64Ki"))}, "sleep", "1000")
	pid := harness.Shims(j.namespace, "")[0].Pid
	j.exec(c, "warm", nil, "true")
	before, err := harness.ReadUsage(pid)
	j.must(err, "usage of the shim")
	const atATime = 4
	rounds := setting(t, "SHIM_TEST_RUNS", 60) / atATime
	began := time.Now()
	for i := range rounds {
		var all []*process
		for k := range atATime {
			all = append(all, j.asExec(c, fmt.Sprintf("x%d-%d", i, k), nil, "echo out; (setsid sleep 100 &); exit 3"))
		}
		for _, x := range all {
			x.wantExit(3)
		}
	}
	t.Logf("%d runs in %v", rounds*atATime, time.Since(began).Round(time.Millisecond))
	c.wantProcesses(1)
	harness.Eventually(t, "no cgroup of an exec is left", func() error {
		if left := c.execCgroups(); len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		}
		return nil
	})
	harness.CheckUsage(t, pid, before, 4)
	c.kill()
}

// systemd 253 and later know memory.oom.group as OOMPolicy=kill, with which a kill in any cgroup of a scope ends all of it.
func TestSystemd_LimitsContainerOutlivesAnExecWithoutMemory(t *testing.T) {
	needCgroup2(t)
	harness.OursOnly(t, "exec-limits")
	j := judge{newSystemdEnv(t), publicDir(t)}
	j.allow("verdict-file", "listen")
	whole := spec(func(s *oci.Spec) { s.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"} })
	for id, more := range map[string][]oci.SpecOpts{
		"launcher":     nil,
		"libcontainer": {sockets("unix:///tmp/serves")},
	} {
		opts := append(with(j.scoped(id), oci.WithMemoryLimit(128*mib), whole, j.limited("memory=32Mi")), more...)
		c := j.run(id, config{opts: opts}, "sh", "-c", "trap 'echo ended' TERM; echo ready; while :; do sleep 0.1; done")
		c.out.WaitFor(t, "ready")
		unit := j.scopeOf(id)
		if got := control(t, cgroupOf(t, unit), "memory.oom.group"); got != "1" {
			t.Errorf("%s: memory.oom.group of the container = %s, want 1", id, got)
		}
		if systemdVersion(t) >= 253 {
			wantProperty(t, unit, "OOMPolicy", "continue")
		}
		for i := range 3 {
			if _, v := j.exec(c, fmt.Sprintf("glutton-%d", i), nil, "exec "+glutton); v.Limit != "memory" {
				t.Errorf("%s: verdict on an exec: %+v", id, v)
			}
		}
		wantProperty(t, unit, "ActiveState", "active")
		if got := c.out.String(); strings.Contains(got, "ended") {
			t.Errorf("%s: the container was told to end: %q", id, got)
		}
		c.kill()
	}
}

// interfere is a program that tries to get at the process $1: to write to its memory, as by ptrace(2), and to its
// output, to read its environment, to signal it, and to write to its files.
const interfere = `
try() { if ( eval "$2" ) 2>/dev/null; then echo "$1 yes"; else echo "$1 no"; fi; }
try memory 'exec 3<>/proc/$pid/mem'
try output 'echo forged >/proc/$pid/fd/1'
try environment 'cat /proc/$pid/environ >/dev/null'
try signal 'kill -0 $pid'
for dir in /tmp /dev/shm; do try file 'echo forged >$dir/of-the-run'; try removal 'rm -f $dir/of-the-run'; done
`

// Runs of one user are one program to the kernel: docs/executors.md asks for a user for each.
func TestLimit_AUserForEachRunKeepsThemApart(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("wall-time=1m,output=64Ki"))},
		"sh", "-c", "mkdir -p /tmp && chmod 1777 /tmp && touch /tmp/ready && exec sleep 1000")
	c.file("/tmp/ready")
	asUser := func(id string, user uint32, program string) *process {
		x := c.startExec(id, config{}, func(p *specs.Process) {
			p.User = specs.User{UID: user, GID: user}
			p.Capabilities, p.NoNewPrivileges = &specs.LinuxCapabilities{}, true
		}, "sh", "-c", program)
		return x
	}
	const victim = 10001
	run := asUser("run", victim, "cd /tmp && echo mine >of-the-run && echo mine >/dev/shm/of-the-run && echo pid $$; exec sleep 1000")
	run.out.WaitFor(t, "pid")
	pid := strings.Fields(run.out.String())[1]
	for _, tt := range []struct {
		id, pid string
		user    uint32
		want    string
	}{
		{"other-user", pid, victim + 1, "no"},
		{"init", "1", victim + 1, "no"},
		{"same-user", pid, victim, "yes"}, // else the others show nothing
	} {
		x := asUser(tt.id, tt.user, "pid="+tt.pid+interfere)
		x.wantExit(0)
		for line := range strings.Lines(x.out.String()) {
			what, got, _ := strings.Cut(strings.TrimSpace(line), " ")
			if tt.want == "yes" && (what == "memory" || what == "output") {
				continue // a security module may refuse the one, and the pipe is that of the container's root
			}
			if got != tt.want {
				t.Errorf("%s: %s: %q, want %s", tt.id, what, got, tt.want)
			}
		}
		if tt.want == "no" && strings.Contains(run.out.String(), "forged") {
			t.Errorf("%s: the output of the run is forged", tt.id)
		}
	}
	j.must(run.Kill(j.ctx, syscall.SIGKILL), "kill")
	run.wantExit(137)
	if v := j.verdict("c1", "run"); v.Stdout.Written != int64(len(run.out.String())) {
		t.Errorf("verdict: %s written, want %d bytes", fmt.Sprint(v.Stdout), len(run.out.String()))
	}
	c.kill()
}
