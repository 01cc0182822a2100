// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// nestDeep makes cgroups below the container's own whose path is longer than the kernel takes (PATH_MAX), in whichever
// of these hierarchies there are, and has the shell in the innermost.
var nestDeep = fmt.Sprintf(`set -e
for top in /sys/fs/cgroup /sys/fs/cgroup/freezer /sys/fs/cgroup/pids /sys/fs/cgroup/memory; do
	[ -e $top/cgroup.procs ] || continue
	cd $top
	for i in $(seq 20); do mkdir %[1]s; cd -P %[1]s; done 2>/dev/null
	echo $$ >cgroup.procs
done
cd /
`, strings.Repeat("n", unix.NAME_MAX))

func TestCgroup_ContainerEndsHoweverDeepItNests(t *testing.T) {
	harness.OursOnly(t, "no path of a cgroup is too long")
	strays := oci.WithHostNamespace(specs.PIDNamespace) // they do not end with the first process
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, e *env, c *task)
	}{
		{"killed", func(_ *testing.T, _ *env, c *task) { c.kill() }},
		{"all killed", func(_ *testing.T, e *env, c *task) {
			e.must(c.process.Kill(e.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
			c.wantExit(137)
		}},
		{"its shim killed", func(t *testing.T, e *env, c *task) {
			t.Helper()
			e.must(unix.Kill(e.shim("c1"), unix.SIGKILL), "SIGKILL to the shim")
			wantForgotten(t, e, c)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			c := e.run("c1", config{opts: with(delegated, strays)}, "sh", "-c",
				nestDeep+"echo nested; sleep 1000 & wait")
			c.out.WaitFor(t, "nested")
			pids, err := c.Pids(e.ctx)
			e.must(err, "pids")
			listed := false
			for _, p := range pids {
				listed = listed || p.Pid == c.Task.Pid()
			}
			if !listed {
				t.Errorf("pids = %v, want %d among them", pids, c.Task.Pid())
			}
			if _, err := c.Metrics(e.ctx); err != nil {
				t.Errorf("metrics = %v", err)
			}
			tt.end(t, e, c)
			// Containerd forgets a task before it cleans up.
			harness.Eventually(t, "the end of all processes", func() error {
				for _, p := range pids {
					if harness.Alive(int(p.Pid)) {
						return fmt.Errorf("process %d lives", p.Pid)
					}
				}
				return nil
			})
		}) // the environment looks whether a cgroup is left
	}
}
