// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// bindService is CAP_NET_BIND_SERVICE, number 10 of capabilities(7), in the five sets of /proc/<pid>/status.
const (
	bindService  = "CAP_NET_BIND_SERVICE"
	capabilities = "sed -n 's/^Cap...:.0*\\(.\\)/\\1/p' /proc/self/status | tr '\\n' ' '"
)

func TestProcess_HasItsCapabilities(t *testing.T) {
	ambient := spec(func(s *oci.Spec) {
		one := []string{bindService}
		s.Process.Capabilities = &specs.LinuxCapabilities{
			Bounding: one, Effective: one, Permitted: one,
			Inheritable: one, Ambient: one,
		}
	})
	// The order is that of the kernel: inheritable, permitted, effective, bounding, ambient.
	runRows(t, []row{
		{
			name: "all dropped", opts: with(oci.WithCapabilities(nil)),
			script: capabilities + "; chown 1 /tmp 2>/dev/null || echo refused", want: "0 0 0 0 0 refused\n",
		},
		{
			name: "one added to none", opts: with(oci.WithCapabilities(nil), oci.WithAddedCapabilities([]string{bindService})),
			script: capabilities, want: "0 400 400 400 0 ",
		},
		{
			name: "kept by another user than root where it is ambient", opts: with(oci.WithUserID(1000), ambient),
			script: capabilities, want: "400 400 400 400 400 ",
		},
		{
			name: "lost by another user than root where it is not", opts: with(oci.WithCapabilities([]string{bindService}), oci.WithUserID(1000)),
			script: capabilities, want: "0 0 0 400 0 ",
		},
	})
}

func TestProcess_GainsPrivilegesOnlyIfAllowed(t *testing.T) {
	const script = "sed -n 's/^NoNewPrivs:.//p' /proc/self/status"
	runRows(t, []row{
		{name: "no new privileges", opts: with(oci.WithNoNewPrivileges), script: script, want: "1\n"},
		{name: "new privileges", opts: with(oci.WithNewPrivileges), script: script, want: "0\n"},
	})
}

func TestProcess_HasItsLimitsScoreAndPriority(t *testing.T) {
	score := 500
	limits := spec(func(s *oci.Spec) {
		s.Process.Rlimits = []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Soft: 101, Hard: 202},
			{Type: "RLIMIT_FSIZE", Soft: 512, Hard: 1024},
		}
	})
	runRows(t, []row{
		{name: "resource limits", opts: with(limits), script: "ulimit -Sn; ulimit -Hn; ulimit -Sf; ulimit -Hf", want: "101\n202\n1\n2\n"},
		{
			name: "score for the out-of-memory killer", opts: with(spec(func(s *oci.Spec) { s.Process.OOMScoreAdj = &score })),
			script: "cat /proc/self/oom_score_adj", want: "500\n",
		},
		{
			// Fields 19 and 41 of /proc/<pid>/stat, proc_pid_stat(5): nice value and policy, 3 for SCHED_BATCH.
			name:   "scheduler",
			opts:   with(spec(func(s *oci.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 7} })),
			script: "cut -d' ' -f19,41 /proc/self/stat", want: "7 3\n",
		},
		{
			name: "priority of input and output",
			opts: with(spec(func(s *oci.Spec) {
				s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 6}
			})),
			script: "ionice -p $$", want: "best-effort: prio 6\n",
		},
	})
}

func TestProcess_HasItsGroupsAndUmask(t *testing.T) {
	groups := spec(func(s *oci.Spec) {
		s.Process.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 77, 4711}}
	})
	runRows(t, []row{
		{name: "additional groups", opts: with(groups), script: "sed -n 's/^Groups:.//p' /proc/self/status", want: "77 1000 4711 \n"},
		{name: "umask", opts: with(oci.WithUmask(0o27)), script: "umask; touch /tmp/x; stat -c %a /tmp/x", want: "0027\n640\n"},
	})
}

func TestProcess_HasItsPersonality(t *testing.T) {
	machine, ok := map[string]struct{ of32, of64 string }{
		"amd64": {"i686", "x86_64"}, "arm64": {"armv8l", "aarch64"},
	}[runtime.GOARCH]
	if !ok {
		t.Skipf("CANNOT RUN HERE: what LINUX32 shows as on %s is not known", runtime.GOARCH)
	}
	domain := func(d specs.LinuxPersonalityDomain) []oci.SpecOpts {
		return with(spec(func(s *oci.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: d} }))
	}
	runRows(t, []row{
		{name: "of 32 bits", opts: domain(specs.PerLinux32), script: "uname -m", want: machine.of32 + "\n"},
		{name: "of 64 bits", opts: domain(specs.PerLinux), script: "uname -m", want: machine.of64 + "\n"},
	})
}

func TestTerminal_HasItsSizeFromTheStart(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{terminal: true, opts: with(oci.WithTTYSize(123, 45))}, "stty", "size")
	c.wantExit(0)
	if got, want := c.out.String(), "45 123\r\n"; got != want {
		t.Errorf("stty size = %q, want %q", got, want)
	}
}

func TestExec_HasItsOwnSettingsElseTheContainers(t *testing.T) {
	parent := newEnv(t)
	score := 300
	c := parent.run("c1", config{opts: with(spec(func(s *oci.Spec) { s.Process.OOMScoreAdj = &score }))},
		"sleep", "1000")
	t.Cleanup(c.kill) // when the subtests have ended
	for i, tt := range []struct {
		name   string
		change func(*specs.Process)
		script string
		want   string
	}{
		{"capabilities", func(p *specs.Process) {
			one := []string{bindService}
			p.Capabilities = &specs.LinuxCapabilities{Bounding: one, Effective: one, Permitted: one}
		}, capabilities, "0 400 400 400 0 "},
		{"no new privileges", func(p *specs.Process) { p.NoNewPrivileges = true }, "sed -n 's/^NoNewPrivs:.//p' /proc/self/status", "1\n"},
		{"new privileges", func(p *specs.Process) { p.NoNewPrivileges = false }, "sed -n 's/^NoNewPrivs:.//p' /proc/self/status", "0\n"},
		{"limits", func(p *specs.Process) {
			p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 55, Hard: 66}}
		}, "ulimit -Sn; ulimit -Hn", "55\n66\n"},
		{"groups", func(p *specs.Process) {
			p.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{77}}
		}, "id -u; id -g; sed -n 's/^Groups:.//p' /proc/self/status", "1000\n1000\n77 \n"},
		{"scheduler", func(p *specs.Process) {
			p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5}
		}, "cut -d' ' -f19,41 /proc/self/stat", "5 3\n"},
		{"priority of input and output", func(p *specs.Process) {
			p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_IDLE}
		}, "ionice -p $$", "idle\n"},
		{"score for the out-of-memory killer", nil, "cat /proc/self/oom_score_adj", "300\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := parent.sub(t)
			of := *c
			of.e = e
			x := of.exec(fmt.Sprintf("e%d", i), config{}, tt.change, "sh", "-c", tt.script)
			e.must(x.Start(e.ctx), "start")
			x.wantExit(0)
			if got := x.out.String(); got != tt.want {
				t.Errorf("stdout = %q, want %q; stderr %q", got, tt.want, x.err)
			}
		})
	}
}

func TestExec_RunsOnTheCPUsOfItsAffinity(t *testing.T) {
	allowed, err := os.ReadFile("/sys/fs/cgroup/cpuset/cpuset.cpus")
	if runtime.NumCPU() < 2 {
		t.Skipf("CANNOT RUN HERE: an affinity shows only where there are two CPUs; cpuset %q, %v", allowed, err)
	}
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, func(p *specs.Process) {
		p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0", Final: "1"}
	}, "sed", "-n", `s/^Cpus_allowed_list:.//p`, "/proc/self/status")
	e.must(x.Start(e.ctx), "start")
	x.wantExit(0)
	if got := strings.TrimSpace(x.out.String()); got != "1" {
		t.Errorf("CPUs of the exec = %q, want 1", got)
	}
	bad := c.exec("e2", config{}, func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Final: "one"} },
		"true")
	wantError(t, bad.Start(e.ctx), nil, "affinity", "one")
	_, err = bad.Delete(e.ctx)
	e.must(err, "delete e2")
	c.kill()
}
