// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"sandbox.internal/shim/integration/harness"
)

func TestState_FollowsTheLifeOfAContainer(t *testing.T) { testStatus(newEnv(t)) }

func testStatus(e *env) {
	c := e.create("c1", config{}, "sleep", "1000")
	wantStatus(c, client.Created)
	e.must(c.process.Start(e.ctx), "start")
	wantStatus(c, client.Running)
	e.must(c.Pause(e.ctx), "pause")
	wantStatus(c, client.Paused)
	e.must(c.Resume(e.ctx), "resume")
	wantStatus(c, client.Running)
	if _, err := c.Task.Delete(e.ctx); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		e.Errorf("Delete while running = %v, want failed precondition", err)
	}
	e.must(c.process.Kill(e.ctx, 9), "kill")
	c.exit()
	wantStatus(c, client.Stopped)
	c.delete()
	e.wantEvents("c1", "create c1 | start c1 | paused c1 | resumed c1 | exit c1 137 | delete c1")
}

func wantStatus(c *task, want client.ProcessStatus) {
	c.e.Helper()
	status, err := c.Status(c.e.ctx)
	c.e.must(err, "status")
	if status.Status != want {
		c.e.Errorf("status = %v, want %v", status.Status, want)
	}
	if exited := want == client.Stopped; status.ExitTime.IsZero() == exited {
		c.e.Errorf("time of the exit = %v while %v", status.ExitTime, want)
	}
}

func TestPause_ContainerStandsStillAndCanBeKilled(t *testing.T) { testPaused(newEnv(t)) }

func testPaused(e *env) {
	c := e.run("c1", config{}, "sleep", "1000")
	e.must(c.Pause(e.ctx), "pause")
	frozen, err := harness.CgroupFile("/"+e.namespace+"/c1", "freezer.state", "cgroup.freeze")
	e.must(err, "freezer")
	if frozen != "FROZEN" && frozen != "1" {
		e.Errorf("freezer of a paused container is %q", frozen)
	}
	if err := c.Pause(e.ctx); err == nil {
		e.Error("second Pause = nil, want an error")
	}
	if x, err := c.tryExec("e1", config{}, nil, "true"); err == nil {
		if err := x.Start(e.ctx); err == nil {
			e.Error("Start of an exec while paused = nil, want an error")
		}
		_, err = x.Delete(e.ctx)
		e.must(err, "delete e1")
	}
	c.kill()
}

func TestPids_NamesTheProcessesAndTheirExecs(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo ready; wait")
	e.must(x.Start(e.ctx), "start e1")
	x.out.WaitFor(t, "ready")
	list, err := c.Pids(e.ctx)
	e.must(err, "pids")
	execs := map[uint32]string{}
	for _, p := range list {
		execs[p.Pid] = ""
		if p.Info == nil {
			continue
		}
		v, err := typeurl.UnmarshalAny(p.Info)
		e.must(err, "process details")
		execs[p.Pid] = v.(*options.ProcessDetails).GetExecID()
	}
	if len(execs) != 3 {
		t.Errorf("Pids = %v, want init, exec and the exec's child", execs)
	}
	if got, ok := execs[c.Task.Pid()]; !ok || got != "" {
		t.Errorf("Pids = %v, want init's pid %d without an exec id", execs, c.Task.Pid())
	}
	if got := execs[x.Pid()]; got != "e1" {
		t.Errorf("Pids = %v, want exec id e1 for pid %d", execs, x.Pid())
	}
	e.must(x.Kill(e.ctx, 9), "kill e1")
	x.wantExit(137)
	c.kill()
}

func TestShim_KeepsNothingOfWhatIsDone(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	work := func(round string) {
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			x := c.exec(round+id, config{stdin: strings.NewReader("x"), terminal: id == "a"}, nil, "sh",
				"-c", "echo hello")
			e.must(x.Start(e.ctx), "start")
			x.wantExit(0)
			_, err := c.Metrics(e.ctx)
			e.must(err, "metrics")
		}
		e.must(c.Pause(e.ctx), "pause")
		e.must(c.Resume(e.ctx), "resume")
	}
	shim := e.shim("c1")
	stacks := func() int {
		size := e.containerd.LogSize()
		return harness.Goroutines(t, shim, func() string { return e.containerd.LogFrom(size) })
	}
	work("warm") // what is opened once and kept is not a leak
	before, err := harness.ReadUsage(shim)
	e.must(err, "usage")
	goroutines := stacks()
	for _, round := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		work(round)
	}
	harness.CheckUsage(t, shim, before, 6)
	// 40 execs went by: one goroutine left by each would show as 40. A few may be on their way out.
	if after := stacks(); after > goroutines+5 {
		t.Errorf("shim has %d goroutines, %d before", after, goroutines)
	}
	if zombies := harness.Zombies(shim); len(zombies) > 0 {
		t.Errorf("shim has not collected %v", zombies)
	}
	c.kill()
}

func TestInfo_NamesTheRuntimeAndItsFeatures(t *testing.T) {
	e := newEnv(t)
	info, err := e.client.RuntimeInfo(e.ctx, e.containerd.Env.Runtime, nil)
	e.must(err, "runtime info")
	if info.Name == "" || info.Version.Version == "" {
		t.Errorf("name %q, version %q, want both", info.Name, info.Version.Version)
	}
	features, ok := info.Features.(*features.Features)
	if !ok || !slices.Contains(features.Linux.Namespaces, "user") || len(features.MountOptions) == 0 {
		t.Errorf("features = %T %+v, want the OCI features with user namespaces and mount options", info.Features,
			info.Features)
	}
	if harness.Runtime() == harness.Ours &&
		!slices.Contains(features.PotentiallyUnsafeConfigAnnotations, annotationHostRootfs) {
		t.Errorf("annotations that are called unsafe: %v, want %s in it", features.PotentiallyUnsafeConfigAnnotations,
			annotationHostRootfs)
	}
}

func TestInfo_TellsANodeFromAnother(t *testing.T) {
	harness.OursOnly(t, "annotations of the runtime info")
	e := newEnv(t)
	info, err := e.client.RuntimeInfo(e.ctx, e.containerd.Env.Runtime, nil)
	e.must(err, "runtime info")
	const prefix = "io.containerd.sandbox.v1/"
	modes := []string{"v1", "hybrid"}
	if unified() {
		modes = []string{"v2"}
	}
	drivers := "cgroupfs"
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		drivers = "cgroupfs,systemd"
	}
	criu, _ := exec.LookPath("criu") // none is an answer too
	for key, want := range map[string][]string{
		"cgroup.mode": modes, "cgroup.drivers": {drivers}, "criu": {criu},
		"exec-launcher": {strconv.FormatBool(slices.Contains([]string{"amd64", "arm64"}, runtime.GOARCH))},
	} {
		if got, ok := info.Annotations[prefix+key]; !ok || !slices.Contains(want, got) {
			t.Errorf("%s = %q, want one of %q", key, got, want)
		}
	}
	if got := info.Annotations[prefix+"seccomp"]; !strings.HasPrefix(got, "2.") {
		t.Errorf("seccomp = %q, want the version of libseccomp", got)
	}
	for _, controller := range []string{"cpu", "memory", "pids"} {
		if got := strings.Split(info.Annotations[prefix+"cgroup.controllers"], ","); !slices.Contains(got, controller) {
			t.Errorf("cgroup.controllers = %q, want %s in it", got, controller)
		}
	}
	// Every setting that it names is one that a container can be given, if with another value than this.
	for setting := range strings.SplitSeq(info.Annotations[prefix+"settings"], ",") {
		_, err := e.tryCreate(setting, config{opts: with(annotations(prefix+setting, ""))}, "true")
		if err == nil || strings.Contains(err.Error(), "unknown") || !strings.Contains(err.Error(), prefix+setting) {
			t.Errorf("setting %s = %v, want that its value is refused", setting, err)
		}
	}
}
