// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
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

// verdict reads the verdict on an exec.
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
	x := c.exec(id, config{}, func(p *specs.Process) { p.Env = append(p.Env, env...) }, "sh", "-c", program)
	e.must(x.Start(e.ctx), "start "+id)
	return x
}

const spin = "while :; do :; done"

func TestLimit_EndsARun(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited(
		"wall-time=20s,cpu-time=10s,memory=64Mi,pids=32,output=64Ki"))}, "sleep", "1000")
	for _, tt := range []struct {
		id, program string
		env         []string
		want        string // limit, signal, status
		check       func(v verdict) string
	}{
		{"exits", "exit 3", nil, " 0 3", nil},
		{"segfaults", "kill -SEGV $$", nil, " 11 139", nil},
		{"sleeps", "sleep 1000", []string{"WALL_TIME=300ms"}, "wall-time 9 137", func(v verdict) string {
			if v.Wall < 300*time.Millisecond || v.Wall > harness.Slow(400*time.Millisecond) {
				return "wall time"
			}
			return ""
		}},
		{"ignores SIGTERM", "trap '' TERM HUP INT; while :; do sleep 1; done", []string{"WALL_TIME=300ms"}, "wall-time 9 137", nil},
		{"leaves the session", "setsid sh -c 'touch /tmp/away; sleep 1000' & sleep 1000", []string{"WALL_TIME=300ms"}, "wall-time 9 137", nil},
		{"stops itself", "kill -STOP $$", []string{"WALL_TIME=300ms"}, "wall-time 9 137", nil},
		{"spins", spin, []string{"CPU_TIME=500ms"}, "cpu-time 9 137", nil},
		{"spins twice", "(" + spin + ") & " + spin, []string{"CPU_TIME=500ms"}, "cpu-time 9 137", nil},
		{"allocates", glutton, nil, "memory 9 137", func(v verdict) string {
			if v.OOMKills == 0 || v.MemoryPeak == 0 || v.MemoryPeak > 64*mib {
				return "memory"
			}
			return ""
		}},
		{"allocates in a child", glutton + "; sleep 1000", nil, "memory 9 137", nil},
		{"forks", "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done", nil, "pids", func(v verdict) string {
			if v.ForksRefused == 0 {
				return "forks"
			}
			return ""
		}},
		{"bombs", "b() { b | b & }; b; sleep 1000", []string{"WALL_TIME=1s"}, "", func(v verdict) string {
			if v.ForksRefused == 0 || v.Limit != "pids" && v.Limit != "wall-time" {
				return "forks"
			}
			return ""
		}},
		{"prints", "yes | head -c 100000", nil, " 0 0", func(v verdict) string {
			if v.Stdout.Written != 100000 || v.Stdout.Dropped != 100000-65536 || v.Stderr.Written != 0 {
				return "output"
			}
			return ""
		}},
	} {
		for i := range tt.env {
			tt.env[i] = "SANDBOX_LIMIT_" + tt.env[i]
		}
		x, v := j.exec(c, strings.ReplaceAll(tt.id, " ", "-"), tt.env, tt.program)
		if got := fmt.Sprintf("%s %d %d", v.Limit, v.Signal, v.Status); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q: %+v", tt.id, got, tt.want, v)
		}
		if tt.check != nil {
			if wrong := tt.check(v); wrong != "" {
				t.Errorf("%s: %s in %+v", tt.id, wrong, v)
			}
		}
		if n := len(x.out.String()); n > 65536 {
			t.Errorf("%s: %d bytes of output", tt.id, n)
		}
		c.wantProcesses(1)
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

func TestLimit_VariablesOnlyTighten(t *testing.T) {
	j := newJudge(t)
	c := j.run("c1", config{opts: with(j.limited("wall-time=10s,memory=64Mi"))}, "sleep", "1000")
	plain := j.run("c2", config{}, "sleep", "1000")
	for i, tt := range []struct {
		c         *task
		env, want string
	}{
		{c, "WALL_TIME=11s", `SANDBOX_LIMIT_WALL_TIME "11s": must not be more than exec-limits`},
		{c, "MEMORY=65Mi", `SANDBOX_LIMIT_MEMORY "65Mi": must not be more`},
		{c, "MEMORY=64MB", `SANDBOX_LIMIT_MEMORY "64MB": must be a size such as`},
		{c, "PIDS=0", `SANDBOX_LIMIT_PIDS "0": must be a number from 1 to 4194304`},
		{c, "CPU=1", `SANDBOX_LIMIT_CPU "1": unknown; known are SANDBOX_LIMIT_WALL_TIME`},
		{plain, "PIDS=5", `SANDBOX_LIMIT_PIDS "5": needs the setting exec-limits`},
	} {
		_, err := tt.c.tryExec(fmt.Sprint("e", i), config{}, func(p *specs.Process) {
			p.Env = append(p.Env, "SANDBOX_LIMIT_"+tt.env)
		}, "true")
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.env, err, tt.want)
		}
	}
	x, v := j.exec(c, "ok", []string{"SANDBOX_LIMIT_PIDS=4", "SANDBOX_LIMIT_MEMORY=32Mi"}, "env; exec dd if=/dev/zero of=/dev/null bs=40M count=1")
	if strings.Contains(x.out.String(), "SANDBOX") || v.Limit != "memory" {
		t.Errorf("environment %q, verdict %+v", x.out, v)
	}
	c.kill()
	plain.kill()
}

func TestLimit_SettingsAreRefusedByName(t *testing.T) {
	j := newJudge(t)
	for i, tt := range []struct{ name, value, want string }{
		{"exec-limits", "wall=1s", `exec-limits "wall=1s": must be off, on, or a list of name=value`},
		{"exec-limits", "wall-time=1h,wall-time=2h", `"wall-time=2h": is there twice`},
		{"exec-limits", "cpu-time=25h", `exec-limits: cpu-time "25h": must be a time such as`},
		{"verdict-file", "/tmp/x", `verdict-file "/tmp/x": must be an absolute path with {exec}`},
	} {
		_, err := j.tryCreate(fmt.Sprint("c", i), config{opts: with(oci.WithAnnotations(map[string]string{
			"io.containerd.sandbox.v1/" + tt.name: tt.value,
		}))}, "true")
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.name, tt.value, err, tt.want)
		}
	}
}
