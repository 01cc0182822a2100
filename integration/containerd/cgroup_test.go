// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// delegated gives a container the root of its own cgroup namespace to write to, as systemd and Docker in a container
// need (systemd.io/CONTAINER_INTERFACE).
var delegated = oci.Compose(
	oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}),
	oci.WithMounts([]specs.Mount{{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"rw", "nosuid", "noexec", "nodev"},
	}}),
)

// nest makes the container's first process move itself away, so that its cgroup may have controllers for those below.
const nest = `cd /sys/fs/cgroup && mkdir -p init work && echo $$ >init/cgroup.procs &&
	echo "+memory +pids" >cgroup.subtree_control && echo nested; `

func TestCgroup2_ContainerMakesItsOwn(t *testing.T) {
	needCgroup2(t)
	limit := oci.WithMemoryLimit(64 * mib)
	t.Run("cgroupfs", func(t *testing.T) {
		testDelegation(t, newEnv(t), with(delegated, limit))
	})
	t.Run("systemd", func(t *testing.T) {
		e := newSystemdEnv(t)
		testDelegation(t, e, with(delegated, limit, e.scoped("c1")))
	})
}

func testDelegation(t *testing.T, e *env, opts []oci.SpecOpts) {
	t.Helper()
	const id = "c1"
	c := e.run(id, config{opts: opts}, "sh", "-c", nest+"trap : TERM; while :; do sleep 1000 & wait; done")
	c.out.WaitFor(t, "nested")
	path := strings.TrimPrefix(control(t, "/proc/"+strconv.Itoa(int(c.Task.Pid())), "cgroup"), "0::")
	top := filepath.Join("/sys/fs/cgroup", filepath.Dir(path))
	if filepath.Base(path) != "init" {
		t.Fatalf("init is in %s, want it in a cgroup that it made", path)
	}

	// The cgroup that libcontainer made may not have processes any more, so an exec joins init where it is.
	x := c.startExec("e1", config{}, nil, "sh", "-c",
		`cat /proc/self/cgroup; trap 'exit 7' TERM; echo $$ >/sys/fs/cgroup/work/cgroup.procs; echo ready
		while :; do sleep 1000 & wait; done`)
	x.out.WaitFor(t, "ready")
	if got := x.out.String(); !strings.Contains(got, "0::/init\n") {
		t.Errorf("the exec began in %q, want init's cgroup", got)
	}
	m, ok := c.metrics().(*cgroup2.Metrics)
	if !ok || m.GetPids().GetCurrent() != 4 { // two shells, and a sleep of each
		t.Errorf("metrics = %v, want 4 processes", m)
	}

	// One is killed for lack of memory in a cgroup of the container's own.
	g := c.startExec("glutton", config{}, nil, "sh", "-c",
		`echo 16M >/sys/fs/cgroup/work/memory.max; echo $$ >/sys/fs/cgroup/work/cgroup.procs; `+glutton)
	g.wantExit(137)
	e.waitEvents(id, "oom "+id)
	c.wantOOMKills(1)

	e.must(c.process.Kill(e.ctx, syscall.SIGTERM, client.WithKillAll), "kill all")
	x.wantExit(7)
	c.kill()
	wantGone(t, top)
}

// makeCgroup makes a cgroup beside those of the test's containers; it ends with the test.
func (e *env) makeCgroup(name string) string {
	e.Helper()
	dir := filepath.Join("/sys/fs/cgroup", e.namespace, name)
	harness.Must(e, os.MkdirAll(dir, 0o755))
	harness.AtEnd(e, func() error { return os.Remove(dir) })
	return dir
}

func wantGone(tb testing.TB, dir string) {
	tb.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		tb.Errorf("cgroup %s: %v, want it gone", dir, err)
	}
}

func TestCgroup2_ThatCannotTakeTheContainer(t *testing.T) {
	needCgroup2(t)
	e := newEnv(t)
	memory := oci.WithMemoryLimit(64 * mib)
	for _, tt := range []struct {
		name, file, value string
		want              error
	}{
		// First, since those above must not have memory for it yet.
		{"a threaded cgroup", "cgroup.type", "threaded", errdefs.ErrFailedPrecondition},
		{"no more cgroups below", "cgroup.max.descendants", "0", errdefs.ErrResourceExhausted},
		{"no cgroups so deep", "cgroup.max.depth", "0", errdefs.ErrResourceExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := "c-" + strings.ReplaceAll(tt.file, ".", "-")
			top := e.makeCgroup(id) // the domain of the threaded one
			parent := e.makeCgroup(id + "/parent")
			writeControl(t, parent, tt.file, tt.value)
			_, err := e.tryCreate(id, config{opts: with(memory, oci.WithCgroup("/"+e.namespace+"/"+id+"/parent/c1"))},
				"true")
			wantError(t, err, tt.want, "linux.cgroupsPath", top)
			wantGone(t, filepath.Join(parent, "c1"))
		})
	}
}

func TestCgroup2_WithoutAController(t *testing.T) {
	needCgroup2(t)
	const all = "memory" // boot with cgroup_disable=memory
	if slices.Contains(strings.Fields(control(t, "/sys/fs/cgroup", "cgroup.controllers")), all) {
		harness.Lacking(t, "nomemory", "a kernel without the memory controller (cgroup_disable=memory)")
	}
	e := newEnv(t)
	_, err := e.tryCreate("c1", config{opts: with(oci.WithMemoryLimit(64 * mib))}, "true")
	wantError(t, err, errdefs.ErrFailedPrecondition, "linux.resources", "memory.max")
	c := e.run("c2", config{}, "sleep", "1000")
	limit := int64(64 * mib)
	err = c.Update(e.ctx, client.WithResources(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}))
	wantError(t, err, errdefs.ErrFailedPrecondition, "linux.resources", "memory.max")
	e.must(c.Update(e.ctx, pidsLimit(33)), "update")
	if m := c.metrics(); m == nil {
		t.Error("no metrics")
	}
	c.kill()
}

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
