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

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
)

// makeThreaded makes the v2 cgroup dir, for threads of processes in the one above.
func makeThreaded(t *testing.T, dir string) {
	t.Helper()
	must(t, os.Mkdir(dir, 0o755))
	must(t, cgroup.Write(filepath.Join(dir, "cgroup.type"), "threaded"))
}

// A program may split its threads over cgroups (kernel, cgroup-v2.rst, "Threads").
func TestExec_BesideThreadedCgroups(t *testing.T) {
	needUnified(t)
	for name, change := range map[string]func(*process.Config){
		"by the launcher": func(*process.Config) {},
		"by libcontainer": func(c *process.Config) { c.Spec.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux} },
	} {
		t.Run(name, func(t *testing.T) {
			wantNoLeaks(t)
			config := newConfig(t, "sleep", "1000")
			change(&config)
			b := create(t, config).start()
			makeThreaded(t, filepath.Join(b.Cgroup().Path(""), "threads"))
			if got := b.exec(t.Context(), command("true")); got.err != nil || got.status != 0 {
				t.Errorf("exec = %+v", got)
			}
		})
	}
}

// As systemd does in a container: it leaves the cgroup of the container to controllers for those below.
func TestExec_JoinsInitInACgroupThatTheContainerMade(t *testing.T) {
	if !unified() {
		lacking(t, "cgroup2", "cgroup v2 alone")
	}
	wantNoLeaks(t)
	b := create(t, newConfig(t, "sleep", "1000")).start()
	dir := b.Cgroup().Path("")
	must(t, os.Mkdir(filepath.Join(dir, "inner"), 0o755))
	must(t, cgroup.Write(filepath.Join(dir, "inner/cgroup.procs"), fmt.Sprint(b.Init().Pid())))
	must(t, cgroup.Write(filepath.Join(dir, "cgroup.subtree_control"), "+pids"))
	for _, limit := range []string{"max", "1"} {
		must(t, cgroup.Write(filepath.Join(dir, "inner/pids.max"), limit))
		got := b.exec(t.Context(), command("cat", "/proc/self/cgroup"))
		if where := b.config.Spec.Linux.CgroupsPath + "/inner\n"; got.err != nil || !strings.HasSuffix(got.out, where) {
			t.Errorf("exec with a limit of %s processes = %d, %q, %v, want it in %q", limit, got.status, got.out, got.err, where)
		}
	}
	if l := b.Launch(); l.ExecsByLibcontainer > 0 {
		t.Errorf("%d execs by libcontainer: %s", l.ExecsByLibcontainer, l.ExecReason)
	}
}
