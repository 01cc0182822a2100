// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// The program's first act is to say where it may run.
func TestCPUSet_HoldsFromTheFirstInstructionOn(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "1-2")
	for i, list := range []string{"1-2", "0,3", "3"} {
		shared.set(list)
		c := e.create("c"+strconv.Itoa(i), config{opts: with(shared.annotation())}, showAffinity...)
		if got := control(t, c.cgroup(), "cpuset.cpus"); got != list {
			t.Errorf("cpuset.cpus of a container that is not started yet = %q, want %q", got, list)
		}
		e.must(c.process.Start(e.ctx), "start")
		c.wantExit(0)
		c.wantAffinity(list)
	}
	e.wantQuiet()
}

func TestCPUSet_FollowsItsSource(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "0-1")
	c := e.run("c1", config{opts: with(shared.annotation(), delegated)}, "sh", "-c",
		strings.Replace(nest, "+memory", "+cpuset +memory", 1)+"sleep 1000 & wait")
	c.out.WaitFor(t, "nested")
	before := c.exec("before", config{}, nil, "sleep", "1000")
	e.must(before.Start(e.ctx), "start an exec")
	for _, list := range []string{"2-3", "0", "1-3"} {
		shared.set(list)
		wantRunsOn(t, "the source changed", c.Task.Pid(), list) // in a cgroup of its own making
		wantRunsOn(t, "the source changed", before.Pid(), list)
		after := c.exec("after"+list[:1], config{}, nil, showAffinity...)
		e.must(after.Start(e.ctx), "start an exec")
		after.wantExit(0)
		after.wantAffinity(list)
	}
	c.wantCPUs("the source changed", "1-3")
	writeControl(t, c.cgroup(), "cpuset.cpus", "0")
	c.wantCPUs("somebody wrote it", "1-3")
	e.wantQuiet()

	e.must(os.Remove(shared.dir), "remove the source")
	e.wantLog("cpuset is kept")
	c.wantCPUs("without the source", "1-3")
	e.must(os.Mkdir(shared.dir, 0o755), "make the source again")
	shared.set("2")
	c.wantCPUs("the source is back", "2")
	e.wantLog("cpuset follows its source again")
	e.must(before.Kill(e.ctx, unix.SIGKILL), "kill the exec")
	before.wantExit(137)
	c.kill()
}

// Execs with limits, and init beside them, are in cgroups below the container's.
func TestCPUSet_FollowedByExecsWithLimits(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "0-1")
	c := e.run("c1", config{opts: with(shared.annotation(), execLimits("pids=50,memory=64Mi"))}, "sleep", "1000")
	x := e.asExec(c, "e1", nil, "exec sleep 1000")
	for _, list := range []string{"2-3", "0"} {
		shared.set(list)
		wantRunsOn(t, "the source changed", c.Task.Pid(), list)
		wantRunsOn(t, "the source changed", x.Pid(), list)
	}
	e.wantQuiet()
	x.kill()
	c.kill()
}

func TestCPUSet_OfThePod(t *testing.T) {
	e := newCPUSetEnv(t)
	pod := e.source("pod", "0-1")
	c := e.run("c1", config{opts: with(oci.WithCgroup("/"+e.namespace+"/pod/c1"),
		oci.WithAnnotations(map[string]string{annotationSource: "parent"}))}, "sleep", "1000")
	wantRunsOn(t, "at first", c.Task.Pid(), "0-1")
	pod.set("2")
	wantRunsOn(t, "the pod changed", c.Task.Pid(), "2")
	want := "2"
	if masks, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 17}); err != nil {
		t.Fatal(err)
	} else if !masks {
		want = "" // or else nobody could have taken CPUs from the pod
	}
	harness.Eventually(t, "cpuset.cpus is the pod's", func() error {
		if got := control(t, filepath.Join(pod.dir, "c1"), "cpuset.cpus"); got != want {
			return fmt.Errorf("it is %q, want %q", got, want)
		}
		return nil
	})
	c.kill()
}

func TestCPUSet_ByOption(t *testing.T) {
	e := newCPUSetEnv(t)
	all, one := e.source("all", "1-2"), e.source("one", "3")
	writeControl(t, all.dir, "cpuset.mems", "0")
	options := withOptions(e, "CpusetSource = \""+e.namespace+"/all\"\nCpusetMems = true\n")
	for _, tt := range []struct {
		name       string
		opts       []oci.SpecOpts
		cpus, mems string
	}{
		{"option", nil, "1-2", "0"},
		{"annotation-first", with(one.annotation()), "3", "0"},
		{"each-key-for-itself", with(oci.WithAnnotations(map[string]string{annotationMems: "false"})), "1-2", ""},
		{"own-cpuset-first", with(one.annotation(), oci.WithCPUs("0")), "0", ""},
	} {
		c := e.run(tt.name, config{opts: tt.opts, new: options}, "sleep", "1000")
		if cpus, mems := control(t, c.cgroup(), "cpuset.cpus"), control(t, c.cgroup(),
			"cpuset.mems"); cpus != tt.cpus || mems != tt.mems {
			t.Errorf("%s: CPUs %q, memory nodes %q, want %q, %q", tt.name, cpus, mems, tt.cpus, tt.mems)
		}
		c.kill()
	}
}

func cpus(list string) client.UpdateTaskOpts {
	return client.WithResources(&specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: list}})
}

func TestCPUSet_IsPinnedByUpdate(t *testing.T) {
	e := newCPUSetEnv(t)
	shared, witness := e.source("shared", "0-1"), e.source("witness", "0-1")
	c := e.run("c1", config{opts: with(shared.annotation(), grouped("pod"))}, "sleep", "1000")
	w := e.run("c2", config{opts: with(witness.annotation(), grouped("pod"))}, "sleep", "1000")
	// Resources as the kubelet sends them for a container without CPUs of its own, and CPUs that there are none of.
	shares := uint64(512)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})),
		"update shares")
	if err := c.Update(e.ctx, cpus("8000")); err == nil {
		t.Error("an update to CPU 8000 succeeded")
	}
	shared.set("1-2")
	c.wantCPUs("not pinned yet", "1-2")

	e.must(c.Update(e.ctx, cpus("3")), "update")
	shared.set("0-2")
	witness.set("2") // whoever follows has followed by the time that the other has
	w.wantCPUs("the source changed", "2")
	c.wantCPUs("pinned", "3")
	wantRunsOn(t, "pinned", c.Task.Pid(), "3")
	e.must(c.Update(e.ctx, cpus("0,3")), "update")
	c.wantCPUs("pinned", "0,3")
	c.kill()
	w.kill()
}

// The kernel takes a partition root's CPUs from all others, so it is not written.
func TestCPUSet_OfAPartitionRoot(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "0-1")
	c := e.run("c1", config{opts: with(shared.annotation())}, "sleep", "1000")
	writeControl(t, c.cgroup(), "cpuset.cpus.partition", "root") // not a valid one, as its parent is none
	shared.set("2")
	e.wantLog("must be member to follow a source")
	c.wantCPUs("a partition root", "0-1")
	writeControl(t, c.cgroup(), "cpuset.cpus.partition", "member")
	c.wantCPUs("a member again", "2")
	c.kill()
}

func TestCPUSet_WhileACPUIsUnplugged(t *testing.T) {
	const cpu3 = "/sys/devices/system/cpu/cpu3"
	if !slices.Contains(strings.Split(os.Getenv("SHIM_TEST_REQUIRE"), ","), "hotplug") {
		lacking(t, "hotplug", "a machine whose CPU 3 may be taken offline")
	}
	e := newCPUSetEnv(t)
	shared := e.source("shared", "2-3")
	c := e.run("c1", config{opts: with(shared.annotation())}, "sleep", "1000")
	t.Cleanup(func() { writeControl(t, cpu3, "online", "1") })
	writeControl(t, cpu3, "online", "0")
	c.wantCPUs("unplugged", "2")
	wantRunsOn(t, "unplugged", c.Task.Pid(), "2")
	writeControl(t, cpu3, "online", "1")
	c.wantCPUs("plugged in", "2-3")
	c.kill()
	e.wantQuiet()
}

func TestCPUSet_WhileContainersComeAndGo(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "0")
	ctx, cancel := context.WithCancel(e.ctx)
	changed := make(chan struct{})
	go func() { // ends before the source does
		defer close(changed)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			if err := os.WriteFile(filepath.Join(shared.dir, "cpuset.cpus"), []byte([]string{"0-3", "1", "2-3"}[i%3]),
				0); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	e.Cleanup(func() { cancel(); <-changed })
	for i := range 6 {
		c := e.create("c"+strconv.Itoa(i), config{opts: with(shared.annotation())}, "sleep", "1000")
		if i%2 == 0 {
			e.must(c.process.Start(e.ctx), "start")
			e.must(c.Pause(e.ctx), "pause")
			e.must(c.Resume(e.ctx), "resume")
			c.kill()
			continue
		}
		_, err := c.Task.Delete(e.ctx, client.WithProcessKill)
		e.must(err, "delete what was not started")
	}
	e.wantQuiet()
}

func TestCPUSet_WatchesEndWithTheLastContainer(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "0-1")
	plain := e.run("pod", config{opts: with(grouped("pod"))}, "sleep", "1000")
	before, err := harness.ReadUsage(e.shim("pod"))
	e.must(err, "look at the shim")
	for range 3 {
		var tasks []*task
		for _, id := range []string{"c1", "c2"} {
			tasks = append(tasks, e.run(id, config{opts: with(shared.annotation(), grouped("pod"))}, "sleep", "1000"))
		}
		for _, c := range tasks {
			c.kill()
			e.must(c.container.Delete(e.ctx, client.WithSnapshotCleanup), "delete the container")
		}
	}
	const lazy = 4 // threads
	harness.CheckUsage(t, e.shim("pod"), before, lazy)
	after, err := harness.ReadUsage(e.shim("pod"))
	e.must(err, "look at the shim")
	if b, a := inotifies(before), inotifies(after); a != b {
		t.Errorf("the shim has %d inotify instances, %d before", a, b)
	}
	plain.kill()
	e.wantQuiet()
}

func inotifies(u harness.Usage) (n int) {
	for _, fd := range u.FDs {
		if strings.Contains(fd, "inotify") {
			n++
		}
	}
	return n
}

func TestCPUSet_OfAKilledShim(t *testing.T) {
	e := newCPUSetEnv(t)
	shared := e.source("shared", "0-1")
	c := e.run("c1", config{opts: with(shared.annotation())}, "sleep", "1000")
	e.must(unix.Kill(e.shim("c1"), unix.SIGKILL), "kill the shim")
	shared.set("2-3")
	e.waitEvents("c1", "exit c1 137 | delete c1")
	c.closeIO()
	wantGone(t, c.cgroup())
	if got := control(t, shared.dir, "cpuset.cpus"); got != "2-3" {
		t.Errorf("the source has %q, want 2-3", got)
	}
}
