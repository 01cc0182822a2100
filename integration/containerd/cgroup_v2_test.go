// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
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
	x := c.exec("e1", config{}, nil, "sh", "-c",
		`cat /proc/self/cgroup; trap 'exit 7' TERM; echo $$ >/sys/fs/cgroup/work/cgroup.procs; echo ready
		while :; do sleep 1000 & wait; done`)
	e.must(x.Start(e.ctx), "start e1")
	x.out.WaitFor(t, "ready")
	if got := x.out.String(); !strings.Contains(got, "0::/init\n") {
		t.Errorf("the exec began in %q, want init's cgroup", got)
	}
	m, ok := c.metrics().(*cgroup2.Metrics)
	if !ok || m.GetPids().GetCurrent() != 4 { // two shells, and a sleep of each
		t.Errorf("metrics = %v, want 4 processes", m)
	}

	// One is killed for lack of memory in a cgroup of the container's own.
	g := c.exec("glutton", config{}, nil, "sh", "-c",
		`echo 16M >/sys/fs/cgroup/work/memory.max; echo $$ >/sys/fs/cgroup/work/cgroup.procs; `+glutton)
	e.must(g.Start(e.ctx), "start glutton")
	g.wantExit(137)
	e.waitEvents(id, "oom "+id)
	c.wantOOMKills(1)

	e.must(c.process.Kill(e.ctx, syscall.SIGTERM, client.WithKillAll), "kill all")
	x.wantExit(7)
	c.kill()
	wantGone(t, top)
}

// Controllers are made available on the way down to the container.
func TestCgroup2_ControllersAreEnabledFromTheRootOn(t *testing.T) {
	needCgroup2(t)
	e := newEnv(t)
	outer := e.makeCgroup("outer")
	if got := control(t, outer, "cgroup.subtree_control"); got != "" {
		t.Fatalf("cgroup.subtree_control of a new cgroup = %q, so the test proves nothing", got)
	}
	limit := int64(33)
	c := e.run("c1", config{opts: with(oci.WithCgroup("/"+e.namespace+"/outer/c1"),
		limited(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}))}, "sleep", "1000")
	if got := control(t, filepath.Join(outer, "c1"), "pids.max"); got != "33" {
		t.Errorf("pids.max = %q, want 33", got)
	}
	c.kill()
}
