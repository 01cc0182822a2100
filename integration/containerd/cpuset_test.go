// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

const (
	annotationSource = "io.containerd.sandbox.v1/cpuset.source"
	annotationMems   = "io.containerd.sandbox.v1/cpuset.mems"
)

// needCPUSet2 skips a test of cpusets where they are not those of cgroup v2 or the CPUs are not 0-3.
func needCPUSet2(t *testing.T) {
	t.Helper()
	harness.OursOnly(t, "a cpuset that follows another")
	if !unified() || !slices.Contains(strings.Fields(control(t, "/sys/fs/cgroup", "cgroup.controllers")), "cpuset") {
		harness.Lacking(t, "cpuset2", "cgroup v2 with the cpuset controller (make test-v2)")
	}
	if got := control(t, "/sys/devices/system/cpu", "online"); got != "0-3" {
		harness.Lacking(t, "cpuset2", "the CPUs 0-3, not "+got)
	}
}

// newCPUSetEnv is newEnv for such a test.
func newCPUSetEnv(t *testing.T) *env {
	t.Helper()
	needCPUSet2(t)
	e := newEnv(t)
	e.allow("cpuset.source")
	top := filepath.Join("/sys/fs/cgroup", e.namespace)
	e.must(os.Mkdir(top, 0o755), "make a cgroup") // env.finish removes it
	for _, dir := range []string{"/sys/fs/cgroup", top} {
		writeControl(t, dir, "cgroup.subtree_control", "+cpuset")
	}
	return e
}

// source makes a cgroup of some CPUs, which ends with the test.
func (e *env) source(name, cpus string) source {
	e.Helper()
	s := source{e, e.makeCgroup(name)}
	s.set(cpus)
	return s
}

// source is a cgroup that containers follow.
type source struct {
	e   *env
	dir string
}

func (s source) set(cpus string) {
	s.e.Helper()
	writeControl(s.e, s.dir, "cpuset.cpus", cpus)
}

func (s source) annotation() oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{annotationSource: strings.TrimPrefix(s.dir, "/sys/fs/cgroup")})
}

func (t *task) cgroup() string {
	t.e.Helper()
	spec, err := t.container.Spec(t.e.ctx)
	t.e.must(err, "spec")
	return filepath.Join("/sys/fs/cgroup", spec.Linux.CgroupsPath)
}

// showAffinity prints the CPUs that it may run on.
var showAffinity = []string{"grep", "Cpus_allowed_list", "/proc/self/status"}

func (p *process) wantAffinity(want string) {
	p.e.Helper()
	if got := strings.TrimSpace(strings.TrimPrefix(p.out.String(), "Cpus_allowed_list:")); got != want {
		p.e.Errorf("%s may run on %q, want %q", p.ID(), got, want)
	}
}

// wantRunsOn waits until a process may run on some CPUs and no others.
func wantRunsOn(tb testing.TB, when string, pid uint32, want string) {
	tb.Helper()
	harness.Eventually(tb, fmt.Sprintf("%s: process %d runs on %s", when, pid, want), func() error {
		text := control(tb, fmt.Sprintf("/proc/%d", pid), "status")
		_, list, _ := strings.Cut(text, "\nCpus_allowed_list:")
		if list, _, _ = strings.Cut(list, "\n"); strings.TrimSpace(list) != want {
			return fmt.Errorf("it runs on %s", strings.TrimSpace(list))
		}
		return nil
	})
}

func (t *task) wantCPUs(when, want string) {
	t.e.Helper()
	harness.Eventually(t.e, when+": cpuset.cpus is "+want, func() error {
		if got := control(t.e, t.cgroup(), "cpuset.cpus"); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// wantLog waits until a text is in the log of containerd and the shims.
func (e *env) wantLog(text string) {
	e.Helper()
	harness.Eventually(e, fmt.Sprintf("%q in the log", text), func() error {
		if log := e.containerd.LogFrom(e.logStart); !strings.Contains(log, text) {
			return fmt.Errorf("the log is %d bytes of other text", len(log))
		}
		return nil
	})
}

func (e *env) wantQuiet() {
	e.Helper()
	for line := range strings.Lines(e.containerd.LogFrom(e.logStart)) {
		if strings.Contains(line, "cpuset") &&
			(strings.Contains(line, "level=warning") || strings.Contains(line, "level=error")) {
			e.Errorf("the log says %s", line)
		}
	}
}

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
	before := c.startExec("before", config{}, nil, "sleep", "1000")
	for _, list := range []string{"2-3", "0", "1-3"} {
		shared.set(list)
		wantRunsOn(t, "the source changed", c.Task.Pid(), list) // in a cgroup of its own making
		wantRunsOn(t, "the source changed", before.Pid(), list)
		after := c.runExec("after"+list[:1], showAffinity...)
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

func TestCPUSet_OfThePod(t *testing.T) {
	e := newCPUSetEnv(t)
	pod := e.source("pod", "0-1")
	c := e.run("c1", config{opts: with(oci.WithCgroup("/"+e.namespace+"/pod/c1"),
		annotations(annotationSource, "parent"), execLimits("pids=50,memory=64Mi"))}, "sleep", "1000")
	x := e.asExec(c, "e1", nil, "exec sleep 1000") // with limits it has a cgroup of its own below
	wantRunsOn(t, "at first", c.Task.Pid(), "0-1")
	pod.set("2")
	wantRunsOn(t, "the pod changed", c.Task.Pid(), "2")
	wantRunsOn(t, "the pod changed", x.Pid(), "2")
	x.kill()
	if got := control(t, filepath.Join(pod.dir, "c1"), "cpuset.cpus"); got != "" {
		t.Errorf("cpuset.cpus = %q, want none: the kernel gives a container what its pod has", got)
	}
	c.kill()
}

func cpus(list string) client.UpdateTaskOpts {
	return client.WithResources(&specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: list}})
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

func TestCPUSet_SourcesThatAreRefused(t *testing.T) {
	e := newCPUSetEnv(t)
	e.source("other", "3")
	pod := e.source("pod", "0-1")
	writeControl(t, pod.dir, "cgroup.subtree_control", "+cpuset")
	for id, tt := range map[string]struct {
		source string
		class  error
		words  []string
	}{
		"missing":  {e.namespace + "/missing", errdefs.ErrNotFound, []string{e.namespace + "/missing"}},
		"above":    {"../../etc", errdefs.ErrInvalidArgument, []string{`"../../etc"`, "must be parent or a path below"}},
		"own":      {e.namespace + "/pod/own", errdefs.ErrInvalidArgument, []string{"the container's own cgroup"}},
		"disjoint": {e.namespace + "/other", errdefs.ErrFailedPrecondition, []string{`"3"`, `"0-1"`}},
	} {
		opts := with(oci.WithCgroup("/"+e.namespace+"/pod/"+id),
			oci.WithAnnotations(map[string]string{annotationSource: tt.source}))
		_, err := e.tryCreate(id, config{opts: opts}, "true")
		wantError(t, err, tt.class, append(tt.words, annotationSource)...)
		wantGone(t, pod.dir+"/"+id)
	}
	_, err := e.tryCreate("option", config{new: withOptions(e, `CpusetSource = "`+e.namespace+`/missing"`)}, "true")
	wantError(t, err, errdefs.ErrNotFound, "CpusetSource", e.namespace+"/missing")
}

// nomad is the tree of cgroups that Nomad has since 1.7 (client/lib/cgroupslib): of all tasks that reserve no cores, and
// of those that do, each with one scope for a task, which has no list of its own.
type nomad struct {
	e              *env
	share, reserve source
}

func newNomad(e *env) nomad {
	e.Helper()
	top := e.makeCgroup("nomad.slice")
	writeControl(e, top, "cgroup.subtree_control", "+cpuset")
	n := nomad{e, e.source("nomad.slice/share.slice", "0-3"), source{e, e.makeCgroup("nomad.slice/reserve.slice")}}
	for _, s := range []source{n.share, n.reserve} {
		writeControl(e, s.dir, "cgroup.subtree_control", "+cpuset")
	}
	return n
}

// move writes both lists in Nomad's order, as reserving and releasing do.
func (n nomad) move(share, reserve string) {
	n.e.Helper()
	n.share.set(share)
	n.reserve.set(reserve)
}

// alloc is the id of an allocation. The containerd driver of Nomad calls containers as Nomad calls the cgroups.
func alloc(i int) string { return fmt.Sprintf("0f5ad3c0-1234-5678-9abc-%012x", i) }

// run runs a task in the cgroup that the page about Nomad says, with cores of its own unless there are none.
func (n nomad) run(i int, name, cores string, options []client.NewContainerOpts) *task {
	n.e.Helper()
	id := alloc(i) + "." + name + ".scope"
	top := strings.TrimPrefix(filepath.Dir(n.share.dir), "/sys/fs/cgroup")
	opts := with(oci.WithCgroup(filepath.Join(top, id)))
	if cores != "" {
		opts = append(opts, oci.WithCPUs(cores))
	}
	return n.e.run(id, config{new: options, opts: opts}, "sleep", "1000")
}

// Twenty tasks share, others reserve a core each and give it back.
func TestCPUSet_InNomadsCgroups(t *testing.T) {
	e := newCPUSetEnv(t)
	n := newNomad(e)
	path := strings.TrimPrefix(filepath.Dir(n.share.dir), "/sys/fs/cgroup/")
	options := withOptions(e, fmt.Sprintf(`CpusetSource = "%[1]s/other.slice/{alloc}.{task}.scope, %[1]s/other.slice/{id}, %[1]s/share.slice"`, path))
	shared := make([]*task, 20)
	for i := range shared {
		shared[i] = n.run(i, "web", "", options)
	}
	reserving := func(i int, core string) (*task, string) {
		scope := filepath.Join(n.reserve.dir, alloc(i)+".db.scope")
		e.must(os.Mkdir(scope, 0o755), "make the scope of a task")
		return n.run(i, "db", core, options), scope
	}
	want := func(when, share string, reserved map[*task]string) {
		t.Helper()
		for _, c := range shared {
			c.wantCPUs(when, share)
			wantRunsOn(t, when, c.Task.Pid(), share)
		}
		for c, core := range reserved {
			if got := control(t, c.cgroup(), "cpuset.cpus"); got != core {
				t.Errorf("%s: %s has %q, want the core that it reserved, %s", when, c.ID(), got, core)
			}
			p := c.startExec("cpus", config{}, nil, "sleep", "1000")
			wantRunsOn(t, when+", an exec", p.Pid(), core)
			p.kill()
		}
	}
	want("at first", "0-3", nil)
	n.move("0-2", "3")
	first, firstScope := reserving(100, "3")
	want("one core is reserved", "0-2", map[*task]string{first: "3"})
	n.move("0-1", "2-3")
	second, secondScope := reserving(101, "2")
	want("two cores are reserved", "0-1", map[*task]string{first: "3", second: "2"})
	first.kill()
	e.must(os.Remove(firstScope), "remove the scope of a task")
	n.move("0-1,3", "2")
	want("one is released", "0-1,3", map[*task]string{second: "2"})
	// Through Docker's driver Nomad gives a container its cores itself: what it writes stays.
	n.move("0-2", "3")
	writeControl(t, second.cgroup(), "cpuset.cpus", "3")
	want("another core", "0-2", map[*task]string{second: "3"})
	second.kill()
	e.must(os.Remove(secondScope), "remove the scope of a task")
	n.share.set("0-3")
	want("all are released", "0-3", nil)
	for _, c := range shared {
		c.kill()
	}
	e.wantQuiet()
}

func setting(tb testing.TB, name string, otherwise int) int {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		tb.Fatalf("%s=%q: want a positive number", name, text)
	}
	return n
}

// Systemd writes the CPUs of a unit again when it is reloaded, so the unit has to follow as well as its cgroup.
func TestSystemd_CPUSetSurvivesAReload(t *testing.T) {
	needCPUSet2(t)
	e := newSystemdEnv(t)
	e.allow("cpuset.source")
	source := e.namespace + "-source.slice"
	setCPUs := func(list string) {
		t.Helper()
		if out := systemctl(t, "set-property", "--runtime", source, "AllowedCPUs="+list); out != "" {
			t.Fatalf("systemctl set-property: %s", out)
		}
	}
	systemctl(t, "start", source)
	t.Cleanup(func() {
		systemctl(t, "stop", source)
		systemctl(t, "revert", source)
	})
	setCPUs("0-1")
	annotation := oci.WithAnnotations(map[string]string{
		annotationSource: strings.TrimPrefix(cgroupOf(t, source), "/sys/fs/cgroup"), annotationMems: "true",
	})
	oomGroup := spec(func(s *oci.Spec) { s.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"} })
	c := e.run("c1", config{opts: with(e.scoped("c1"), annotation, oomGroup)}, "sleep", "1000")
	unit := e.scopeOf("c1")
	dir := cgroupOf(t, unit)
	want := func(when, list string) {
		t.Helper()
		harness.Eventually(t, when, func() error {
			if got := control(t, dir, "cpuset.cpus"); got != list {
				return fmt.Errorf("cpuset.cpus is %q, want %q", got, list)
			}
			if got := property(t, unit, "AllowedCPUs"); got != list {
				return fmt.Errorf("AllowedCPUs is %q, want %q", got, list)
			}
			return nil
		})
		wantRunsOn(t, when, c.Task.Pid(), list)
		// A reload does not keep this one before systemd 253.
		if got := control(t, dir, "memory.oom.group"); got != "1" {
			t.Errorf("%s: memory.oom.group = %q, want 1", when, got)
		}
		writeControl(t, dir, "memory.oom.group", "0")
		e.wantReloaded(dir)
		writeControl(t, dir, "memory.oom.group", "1")
	}
	want("at first", "0-1")
	wantProperty(t, unit, "AllowedMemoryNodes", "0")
	setCPUs("2")
	want("the source changed", "2")
	setCPUs("1-3")
	want("the source changed again", "1-3")
	e.must(c.Update(e.ctx, cpus("3")), "update")
	setCPUs("0-1")
	want("pinned", "3")
	c.kill()
	wantNoUnit(t, unit, dir)
	e.wantQuiet()
}
