// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

func TestSystemd_ContainerIsAScopeInItsSlice(t *testing.T) {
	e := newSystemdEnv(t)
	c := e.run("c1", config{opts: append(little, e.scoped("c1"))}, "sh", "-c", "sleep 1000 & wait")
	unit := e.scopeOf("c1")
	dir := cgroupOf(t, unit)
	memoryLimit := "MemoryMax"
	if !unified() {
		memoryLimit = "MemoryLimit"
	}
	wantProperties(t, unit, map[string]string{
		"LoadState": "loaded", "ActiveState": "active", "Slice": e.slice(), "Delegate": "yes", "Transient": "yes",
		"Description": "libcontainer container " + e.namespace + "-c1", memoryLimit: strconv.Itoa(24 * mib),
	})
	path := strings.TrimPrefix(dir, memoryRoot())
	if want := e.slice() + "/" + unit; !strings.HasSuffix(path, "/"+want) {
		t.Errorf("cgroup of the scope = %s, want it to end in %s", dir, want)
	}
	wantIn := func(pid uint32) {
		t.Helper()
		text := control(t, filepath.Join("/proc", strconv.Itoa(int(pid))), "cgroup")
		for line := range strings.SplitSeq(text, "\n") { // one for each hierarchy
			if !strings.HasSuffix(line, ":"+path) {
				t.Errorf("process %d is in %s, want it in %s", pid, line, path)
			}
		}
	}
	wantIn(c.Task.Pid())
	x := c.exec("e1", config{}, nil, "sleep", "1000")
	e.must(x.Start(e.ctx), "start e1")
	wantIn(x.Pid())
	var pids, limit uint64
	switch m := c.metrics().(type) {
	case *cgroup1.Metrics:
		pids, limit = m.GetPids().GetCurrent(), m.GetMemory().GetUsage().GetLimit()
	case *cgroup2.Metrics:
		pids, limit = m.GetPids().GetCurrent(), m.GetMemory().GetUsageLimit()
	}
	if pids != 3 || limit != 24*mib {
		t.Errorf("metrics say %d processes and a limit of %d, want 3 and %d", pids, limit, 24*mib)
	}

	e.must(c.Pause(e.ctx), "pause")
	got, err := harness.CgroupFile(path, "freezer.state", "cgroup.events")
	e.must(err, "freezer")
	if got != "FROZEN" && !strings.Contains(got, "frozen 1") {
		t.Errorf("freezer of the paused container says %q, want it frozen", got)
	}
	e.must(c.Resume(e.ctx), "resume")
	e.must(x.Kill(e.ctx, syscall.SIGKILL), "kill e1")
	x.wantExit(137)
	c.kill()
	wantNoUnit(t, unit, dir)
}

// A system bus has few connections for all who are root.
func TestSystemd_ContainerKeepsNoConnection(t *testing.T) {
	harness.OursOnly(t, "the runc shim runs runc, whose connections end with it")
	e := newSystemdEnv(t)
	c := e.run("c1", config{opts: append(little, e.scoped("c1"))}, "sleep", "1000")
	shim := strconv.Itoa(e.shim("c1"))
	wantNone := func(when string) {
		t.Helper()
		out, err := exec.Command("busctl", "list", "--unique", "--no-legend").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "\n") {
			t.Fatalf("busctl list: %v: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[1] == shim {
				t.Errorf("%s the shim has a connection: %s", when, line)
			}
		}
	}
	wantNone("after a create and a start")
	e.must(c.Update(e.ctx, pidsLimit(33)), "update")
	wantNone("after an update")
	x := c.exec("e1", config{}, nil, "true")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	wantNone("after an exec")
	c.kill()
}

func TestSystemd_OOMIsReported(t *testing.T) {
	e := newSystemdEnv(t)
	c := e.run("c1", config{opts: append(little, e.scoped("c1"))}, strings.Fields(glutton)...)
	c.wantExit(137)
	e.wantEvents("c1", "create c1 | start c1 | oom c1 | exit c1 137 | delete c1")
	wantNoUnit(t, e.scopeOf("c1"), "")
}

// The scope has ended with its processes when containerd is back and asks for them.
func TestSystemd_ExitWhileContainerdIsAwayIsKept(t *testing.T) {
	harness.OursOnly(t, "the exit is kept")
	e := newSystemdEnvOn(t, ownContainerd(t))
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
	dir := cgroupOf(t, e.scopeOf("c1"))
	e.must(e.containerd.Kill(), "kill containerd")
	e.must(syscall.Kill(int(c.Task.Pid()), syscall.SIGKILL), "kill init")
	wantNoUnit(t, e.scopeOf("c1"), dir)
	e.must(e.containerd.Start(e.ctx), "start containerd again")
	e.subscribe()
	e.wantEnded(c)
}

// A container that is restarted has the same scope again (Docker's restart).
func TestSystemd_ScopeOfTheSameNameFollowsAtOnce(t *testing.T) {
	e := newSystemdEnv(t)
	for range 5 {
		c := e.run("c1", config{opts: with(e.scoped("c1"))}, "true")
		c.wantExit(0)
		e.must(c.container.Delete(e.ctx, client.WithSnapshotCleanup), "delete the container")
	}
}

func TestSystemd_ByTheOption(t *testing.T) {
	e := newSystemdEnv(t)
	option := client.WithRuntime(e.containerd.Env.Runtime, &options.Options{SystemdCgroup: true})
	c := e.run("c1", config{opts: with(e.scoped("c1")), new: []client.NewContainerOpts{option}}, "sleep", "1000")
	dir := cgroupOf(t, e.scopeOf("c1"))
	c.kill()
	wantNoUnit(t, e.scopeOf("c1"), dir)
}

func TestSystemd_RefusesWhatIsNoNameOfAScope(t *testing.T) {
	e := newSystemdEnv(t)
	option := client.WithRuntime(e.containerd.Env.Runtime, &options.Options{SystemdCgroup: true})
	for i, tt := range []struct{ name, path, want string }{
		{"a path", "/" + e.namespace + "/c1", "slice:prefix:name"},
		{"one colon", e.slice() + ":c1", "slice:prefix:name"},
		{"no slice", "a:b:c", "slice"},
		{"an empty part of the slice's name", "a--b.slice:b:c", "slice"},
		{"a character that units cannot have", e.slice() + ":b:c d", "unit"},
		{"no name", e.slice() + ":b:", "name"},
		{"a name that is a slice's", e.slice() + ":b:c.slice", "name"},
		{"a name that is too long", e.slice() + ":b:" + strings.Repeat("c", 255), "unit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := fmt.Sprintf("c%d", i)
			_, err := e.tryCreate(id,
				config{opts: []oci.SpecOpts{oci.WithCgroup(tt.path)}, new: []client.NewContainerOpts{option}}, "true")
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("create with cgroupsPath %q: %v, want invalid argument", tt.path, err)
			}
			for _, want := range []string{"linux.cgroupsPath", tt.path, tt.want} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("create with cgroupsPath %q: %v, want %q in it", tt.path, err, want)
				}
			}
		})
	}
}

func TestSystemd_ScopeOfAnotherIsRefusedAndUnharmed(t *testing.T) {
	e := newSystemdEnv(t)
	for i, slice := range []string{e.slice(), "system.slice"} {
		t.Run("in "+slice, func(t *testing.T) {
			id := fmt.Sprintf("c%d", i)
			foreign := foreignScope(t, e.scopeOf(id), slice)
			_, err := e.tryCreate(id, config{opts: with(e.scoped(id))}, "true")
			if !errdefs.IsAlreadyExists(err) {
				t.Errorf("create with a scope of another's name: %v, want already exists", err)
			}
			if err == nil || !strings.Contains(err.Error(), e.scopeOf(id)) {
				t.Errorf("error = %v, want it to name %s", err, e.scopeOf(id))
			}
			wantProperty(t, e.scopeOf(id), "ActiveState", "active")
			if !harness.Alive(foreign) {
				t.Errorf("process %d of the other's scope is dead", foreign)
			}
		})
	}
}

// foreignScope is a scope with one process, which ends with the test.
func foreignScope(t *testing.T, unit, slice string) (pid int) {
	t.Helper()
	cmd := exec.Command("systemd-run", "--scope", "--unit="+unit, "--slice="+slice, "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // dead already is as good
		_ = cmd.Wait()         // that it was killed is what is wanted
		wantNoUnit(t, unit, "")
	})
	harness.Eventually(t, unit+" runs", func() error {
		if state := property(t, unit, "ActiveState"); state != "active" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	return cmd.Process.Pid // systemd-run becomes the program
}

func TestSystemd_KilledShimLeavesNothing(t *testing.T) {
	e := newSystemdEnv(t)
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sh", "-c", "sleep 1000 & wait")
	dir := cgroupOf(t, e.scopeOf("c1"))
	pid := int(c.Task.Pid())
	e.must(syscall.Kill(e.shim("c1"), syscall.SIGKILL), "kill the shim")
	wantNoUnit(t, e.scopeOf("c1"), dir)
	if harness.Alive(pid) {
		t.Errorf("init %d lives", pid)
	}
	c.closeIO()
}
