// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// tracing is a container of few rights whose init may trace.
func tracing(t *testing.T, change func(*process.Config), args ...string) *box {
	t.Helper()
	return withProbe(t, func(c *process.Config) {
		code, err := compiled("tracer.c")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(c.Rootfs, "bin/tracer"), code, 0o755)) //nolint:gosec // a program is executable
		caps := append([]string{"CAP_SYS_PTRACE"}, few...)
		c.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		c.Spec.Process.Args = args
		change(c)
	})
}

// alike is a command with what the container's configuration grants no exec by itself.
func (b *box) alike(args ...string) *specs.Process {
	p := command(args...)
	p.NoNewPrivileges = b.config.Spec.Process.NoNewPrivileges
	return p
}

// tracingVariants are containers in which an exec gets its rights in different ways.
func tracingVariants(t *testing.T) []configVariant {
	t.Helper()
	confined := func(c *process.Config) { c.Spec.Process.NoNewPrivileges = true }
	return []configVariant{
		{"capabilities", func(*process.Config) {}},
		{"seccomp", filtered(t, nil)},
		{"seccomp and no new privileges", func(c *process.Config) { filtered(t, nil)(c); confined(c) }},
	}
}

// traceable are the execs that are tried: with and without a user, a terminal, and limits.
var traceable = []func(*specs.Process){
	nil,
	user(1000),
	func(p *specs.Process) { p.Terminal = true },
	func(p *specs.Process) {
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: 1000, Hard: 1000}}
		user(1000)(p)
	},
}

// CAP_SYS_PTRACE is over whatever is in the PID namespace, dumpable or not.
func TestExec_AProcessThatTracesTheLauncherGetsNoRights(t *testing.T) {
	// What is moved into its cgroups has done nothing before.
	full := configVariant{"at the limit of processes", func(c *process.Config) {
		c.Spec.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: new(int64(1))}}
	}}
	for _, w := range append(tracingVariants(t), full) {
		t.Run(w.name, func(t *testing.T) {
			b := tracing(t, w.change, "tracer")
			told := func() string {
				text, err := os.ReadFile(strings.TrimPrefix(b.config.IO.Stdout, "file://"))
				must(t, err)
				return string(text)
			}
			lines := func(prefix string) int { return strings.Count(told(), prefix) }
			eventually(t, "the tracer", func() bool { return lines("ready") == 1 })
			for lines("traced")+lines("excess") < 20 {
				for _, change := range traceable {
					p := b.alike("true")
					if change != nil {
						change(p)
					}
					if got := b.exec(t.Context(), p); got.err != nil {
						t.Fatalf("exec: %v", got.err)
					}
				}
			}
			if n := lines("excess"); n > 0 {
				_, first, _ := strings.Cut(told(), "excess")
				first, _, _ = strings.Cut(first, "\n")
				t.Errorf("%d of %d processes that were traced had more rights than the container, the first%s", n, n+lines("traced"), first)
			}
		})
	}
}

// What waits for the container's files is not yet in its PID namespace, and what is there has only its rights.
func TestExec_IsInThePIDNamespaceWithTheRightsOfItsProgram(t *testing.T) {
	for _, w := range tracingVariants(t) {
		t.Run(w.name, func(t *testing.T) {
			b := tracing(t, w.change, "sleep", "1000")
			program, file := b.own("true")
			home, run := holdAt(t, filepath.Join(b.config.Rootfs, "etc/passwd"), opening), holdAt(t, file, running)
			ended := make(chan result, 1)
			go func() { ended <- b.exec(t.Context(), b.alike(program)) }()

			if ids := status(t, home.wait(), "NSpid"); len(ids) != 1 {
				t.Errorf("while the home directory is looked for the process has the ids %q, want none in the container", ids)
			}
			home.letGo()
			pid := run.wait()
			if ids := status(t, pid, "NSpid"); len(ids) != 2 {
				t.Errorf("while the program is run the process has the ids %q, want one in the container", ids)
			}
			for _, field := range []string{"CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"} {
				got, want := status(t, pid, field), status(t, b.Init().Pid(), field)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("while the program is run %s is %s, want init's %s", field, got, want)
				}
			}
			run.letGo()
			if got := <-ended; got != (result{}) {
				t.Errorf("exec = %+v, want success", got)
			}
		})
	}
}

// status are the words of a field of /proc/PID/status.
func status(t *testing.T, pid int, field string) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n"+field+":")
	if !ok {
		t.Fatalf("/proc/%d/status has no %s", pid, field)
	}
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.Fields(rest)
}
