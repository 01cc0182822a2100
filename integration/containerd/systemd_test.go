// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// newSystemdEnv is newEnv for a test that has systemd make the cgroups.
func newSystemdEnv(t *testing.T) *env {
	t.Helper()
	return newSystemdEnvOn(t, shared)
}

// newSystemdEnvOn is the same on a containerd of the test's own.
func newSystemdEnvOn(t *testing.T, c *harness.Containerd) *env {
	t.Helper()
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		harness.Lacking(t, "systemd", "systemd as pid 1 (make test-systemd)")
	}
	e := newEnvOn(t, c)
	e.Cleanup(func() {
		harness.Eventually(e, "all scopes are forgotten", func() error {
			if text := systemctl(e, "list-units", "--all", "--plain", "--no-legend",
				"*"+e.namespace+"*.scope"); strings.TrimSpace(text) != "" {
				return fmt.Errorf("there are\n%s", text)
			}
			return nil
		})
		systemctl(e, "stop", e.slice())
	})
	return e
}

// needCgroup2 skips a test where cgroup v2 is not the only one.
func needCgroup2(tb testing.TB) {
	tb.Helper()
	if !unified() {
		harness.Lacking(tb, "cgroup2", "cgroup v2 alone (make test-v2)")
	}
}

func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// needGuest skips a test that takes D-Bus away from everybody on the machine.
func needGuest(tb testing.TB) {
	tb.Helper()
	if _, err := os.Stat("/run/guest"); err != nil {
		harness.Lacking(tb, "guest", "a virtual machine of its own (make test-systemd)")
	}
}

// slice is of the test's own. Systemd makes it with the first unit in it.
func (e *env) slice() string { return e.namespace + ".slice" }

func (e *env) scoped(id string) oci.SpecOpts {
	return oci.WithCgroup(e.slice() + ":test:" + e.namespace + "-" + id)
}

func (e *env) scopeOf(id string) string { return "test-" + e.namespace + "-" + id + ".scope" }

// systemctl runs systemctl and returns what it says; that it says no is for the caller to see.
func systemctl(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		tb.Fatalf("systemctl %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// systemdVersion is the number that systemd has for a version.
func systemdVersion(tb testing.TB) int {
	tb.Helper()
	text := property(tb, "", "Version") // "247.3-7+deb11u8", "257.13-1~deb13u1"
	var version int
	if _, err := fmt.Sscanf(text, "%d", &version); err != nil {
		tb.Fatalf("version %q of systemd: %v", text, err)
	}
	return version
}

func property(tb testing.TB, unit, name string) string {
	tb.Helper()
	args := []string{"show", "--value", "--property", name}
	if unit != "" { // else it is systemd's own
		args = append(args, unit)
	}
	return strings.TrimSpace(systemctl(tb, args...))
}

func wantProperty(tb testing.TB, unit, name, want string) {
	tb.Helper()
	wantProperties(tb, unit, map[string]string{name: want})
}

// wantProperties compares several, which systemd is asked for at once.
func wantProperties(tb testing.TB, unit string, want map[string]string) {
	tb.Helper()
	names := slices.Sorted(maps.Keys(want))
	got := map[string]string{}
	for line := range strings.Lines(systemctl(tb, "show", "--property", strings.Join(names, ","), unit)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[name] = value
	}
	for _, name := range names {
		if got[name] != want[name] {
			tb.Errorf("%s of %s = %q, want %q", name, unit, got[name], want[name])
		}
	}
}

// wantNoUnit checks that systemd has forgotten a unit and that its cgroup is gone.
func wantNoUnit(tb testing.TB, unit, dir string) {
	tb.Helper()
	harness.Eventually(tb, unit+" is forgotten", func() error {
		if state := property(tb, unit, "LoadState"); state != "not-found" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	if dir == "" {
		return
	}
	roots, err := harness.CgroupRoots()
	harness.Must(tb, err)
	for _, root := range roots {
		dir := filepath.Join(root, strings.TrimPrefix(dir, memoryRoot()))
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			tb.Errorf("cgroup %s of %s: %v, want it gone", dir, unit, err)
		}
	}
}

// memoryRoot is where the hierarchy of the memory controller is mounted.
func memoryRoot() string {
	if unified() {
		return "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/memory"
}

// cgroupOf is the directory of a unit that runs, on cgroup v1 the one for its memory.
func cgroupOf(tb testing.TB, unit string) string {
	tb.Helper()
	path := property(tb, unit, "ControlGroup")
	if path == "" {
		tb.Fatalf("%s has no cgroup: %s", unit, systemctl(tb, "status", unit))
	}
	return filepath.Join(memoryRoot(), path)
}

func control(tb testing.TB, dir, file string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(dir, file))
	harness.Must(tb, err)
	return strings.TrimSpace(string(text))
}

func writeControl(tb testing.TB, dir, file, text string) {
	tb.Helper()
	harness.Must(tb, os.WriteFile(filepath.Join(dir, file), []byte(text), 0))
}

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
	x := c.startExec("e1", config{}, nil, "sleep", "1000")
	wantIn(x.Pid())
	if f := c.figures(); f.pids != 3 || f.limit != 24*mib {
		t.Errorf("statistics %+v, want 3 processes and a limit of %d", f, 24*mib)
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
	c.runExec("e1", "true")
	wantNone("after an exec")
	c.kill()
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

// limited sets the resources of a container and leaves the rest.
func limited(r *specs.LinuxResources) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
		r.Devices = s.Linux.Resources.Devices
		s.Linux.Resources = r
		return nil
	}
}

// Each limit is a property of the unit as well, so that systemd writes what the container has when it is reloaded.
func TestSystemd_LimitsSurviveAReload(t *testing.T) {
	needCgroup2(t)
	e := newSystemdEnv(t)
	limit, low, pids, quota := int64(64*mib), int64(32*mib), int64(77), int64(30000)
	period, burst, shares, weight := uint64(100000), uint64(10000), uint64(2048), uint16(200)
	c := e.run("c1", config{opts: []oci.SpecOpts{e.scoped("c1"), limited(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit, Reservation: &low},
		CPU: &specs.LinuxCPU{
			Quota: &quota, Period: &period, Burst: &burst, Shares: &shares,
			Cpus: "0-1", Mems: "0",
		},
		Pids:    &specs.LinuxPids{Limit: &pids},
		BlockIO: &specs.LinuxBlockIO{Weight: &weight},
		Unified: map[string]string{"memory.high": strconv.Itoa(48 * mib), "memory.min": strconv.Itoa(mib)},
	})}}, "sleep", "1000")
	unit := e.scopeOf("c1")
	dir := cgroupOf(t, unit)
	wantProperties(t, unit, map[string]string{
		"MemoryMax": "67108864", "MemorySwapMax": "0", "MemoryLow": "33554432", "MemoryHigh": "50331648",
		"MemoryMin":          "1048576",
		"CPUQuotaPerSecUSec": "300ms", "CPUQuotaPeriodUSec": "100ms", "AllowedCPUs": "0-1", "AllowedMemoryNodes": "0",
		"TasksMax": "77", "CPUWeight": control(t, dir, "cpu.weight"), "IOWeight": ioWeight(t, dir),
	})
	e.wantReloaded(dir)

	limit, low, pids, quota, shares, weight = 96*mib, 16*mib, 33, 50000, 512, 500
	swap := int64(128 * mib)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory:  &specs.LinuxMemory{Limit: &limit, Swap: &swap, Reservation: &low},
		CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares, Cpus: "1"},
		Pids:    &specs.LinuxPids{Limit: &pids},
		BlockIO: &specs.LinuxBlockIO{Weight: &weight},
		Unified: map[string]string{"memory.high": "max"},
	})), "update")
	wantProperties(t, unit, map[string]string{
		"MemoryMax": "100663296", "MemorySwapMax": "33554432", "MemoryLow": "16777216", "MemoryHigh": "infinity",
		"MemoryMin":          "1048576",
		"CPUQuotaPerSecUSec": "500ms", "CPUQuotaPeriodUSec": "100ms", "AllowedCPUs": "1", "AllowedMemoryNodes": "0",
		"TasksMax": "33", "CPUWeight": control(t, dir, "cpu.weight"), "IOWeight": ioWeight(t, dir),
	})
	e.wantReloaded(dir)

	// Swap off again, and idle instead of a weight.
	idle := int64(1)
	e.must(c.Update(e.ctx, client.WithResources(&specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}, CPU: &specs.LinuxCPU{Idle: &idle},
	})), "update")
	cpuWeight := "idle"
	if systemdVersion(t) < 252 { // which have no such weight, and the kernel refuses another one
		cpuWeight = property(t, unit, "CPUWeight")
	}
	wantProperties(t, unit,
		map[string]string{"MemorySwapMax": "0", "CPUWeight": cpuWeight, "MemoryMin": "1048576", "TasksMax": "33"})
	if got := control(t, dir, "cpu.idle"); got != "1" {
		t.Errorf("cpu.idle = %s, want 1", got)
	}
	e.wantReloaded(dir)
	c.kill()
}

// ioWeight is io.weight of all devices that have none of their own.
func ioWeight(tb testing.TB, dir string) string {
	tb.Helper()
	line, _, _ := strings.Cut(control(tb, dir, "io.weight"), "\n")
	return strings.TrimPrefix(line, "default ")
}

// wantReloaded checks that a reload of systemd leaves the limits of a cgroup as they are.
func (e *env) wantReloaded(dir string) {
	e.Helper()
	before := limits(e, dir)
	if out := systemctl(e, "daemon-reload"); out != "" {
		e.Errorf("systemctl daemon-reload: %s", out)
	}
	after := limits(e, dir)
	for file, want := range before {
		if got := after[file]; got != want {
			e.Errorf("%s after a reload = %q, want %q, as before", file, got, want)
		}
	}
}

// limits reads the control files that limit or weigh something.
func limits(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	all := map[string]string{}
	for _, pattern := range []string{
		"*.max", "*.weight", "*.min", "*.low", "*.high", "cpu.idle", "cpu.max.burst",
		"cpuset.cpus", "cpuset.mems", "memory.oom.group",
	} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		harness.Must(tb, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			harness.Must(tb, err)
			all[filepath.Base(file)] = strings.TrimSpace(string(text))
		}
	}
	return all
}

// The devices that a container may use are not those of the unit's properties alone, but those and libcontainer's
// program.
func TestSystemd_DevicesSurviveAReload(t *testing.T) {
	e := newSystemdEnv(t)
	const fuse = `mknod /dev/f c 10 229
		while read -r line; do (: </dev/f) 2>/dev/null && echo $line allowed || echo $line denied; done`
	allow := spec(func(s *oci.Spec) {
		major, minor := int64(10), int64(229)
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	})
	for id, opts := range map[string][]oci.SpecOpts{
		"allowed": with(e.scoped("allowed"), allow),
		"denied":  with(e.scoped("denied")),
	} {
		keyboard, stdin := typed(e)
		c := e.run(id, config{opts: opts, stdin: stdin}, "sh", "-c", fuse)
		for _, when := range []string{"before", "after"} {
			if when == "after" {
				systemctl(t, "daemon-reload")
			}
			e.typeLine(keyboard, when)
			c.out.WaitFor(t, when+" "+id)
		}
		c.kill()
	}
}

func pidsLimit(n int64) client.UpdateTaskOpts {
	return client.WithResources(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &n}})
}

func TestSystemd_IsConnectedToAgain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		guest bool
		fault func(t *testing.T)
	}{
		{"after systemd has executed itself again", false, func(t *testing.T) { t.Helper(); systemctl(t, "daemon-reexec") }},
		{"after the D-Bus daemon was restarted", true, func(t *testing.T) { t.Helper(); systemctl(t, "restart", "dbus.service") }},
		{"after the D-Bus daemon was killed", true, func(t *testing.T) {
			t.Helper()
			before := property(t, "dbus.service", "MainPID")
			systemctl(t, "kill", "--signal=KILL", "dbus.service")
			harness.Eventually(t, "another D-Bus daemon", func() error {
				systemctl(t, "start", "dbus.service")
				if pid := property(t, "dbus.service", "MainPID"); pid == before || pid == "0" {
					return fmt.Errorf("its pid is %s", pid)
				}
				return nil
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.guest {
				needGuest(t)
			}
			e := newSystemdEnv(t)
			c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
			dir := cgroupOf(t, e.scopeOf("c1"))
			tt.fault(t)
			c.runExec("e1", "true")
			e.must(c.Update(e.ctx, pidsLimit(33)), "update")
			wantProperty(t, e.scopeOf("c1"), "TasksMax", "33")
			c.kill()
			wantNoUnit(t, e.scopeOf("c1"), dir)
			again := e.run("c2", config{opts: with(e.scoped("c2"))}, "true")
			again.wantExit(0)
		})
	}
}

// withoutDBus takes the sockets away at which systemd can be asked. The returned function puts them back.
func withoutDBus(t *testing.T) (back func()) {
	t.Helper()
	sockets := []string{"/run/dbus/system_bus_socket", "/run/systemd/private"}
	for _, name := range sockets {
		harness.Must(t, os.Rename(name, name+".away"))
	}
	back = func() {
		for _, name := range sockets {
			_ = os.Rename(name+".away", name) // it was put back already
		}
	}
	t.Cleanup(back)
	return back
}

func TestSystemd_ThatCannotBeReached(t *testing.T) {
	e := newSystemdEnv(t)
	needGuest(t)
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
	orphan := e.run("orphan", config{opts: with(e.scoped("orphan"))}, "sleep", "1000")
	dir, orphaned := cgroupOf(t, e.scopeOf("c1")), cgroupOf(t, e.scopeOf("orphan"))
	daemon := dbusDaemon(t)
	back := withoutDBus(t)
	e.must(syscall.Kill(daemon, syscall.SIGKILL), "kill the D-Bus daemon")
	t.Cleanup(func() { back(); systemctl(t, "start", "dbus.service") })

	_, err := e.tryCreate("c2", config{opts: with(e.scoped("c2"))}, "true")
	wantSystemdError(t, "create", err)
	wantSystemdError(t, "update", c.Update(e.ctx, pidsLimit(44)))
	c.runExec("e1", "true")
	c.kill()
	wantGone(t, dir)
	e.must(syscall.Kill(e.shim("orphan"), syscall.SIGKILL), "kill the shim of orphan")
	harness.Eventually(t, "what the shim left is removed", func() error {
		if _, err := os.Stat(orphaned); err == nil {
			return fmt.Errorf("there is %s", orphaned)
		}
		return nil
	})
	orphan.closeIO()

	back()
	systemctl(t, "start", "dbus.service")
	for _, id := range []string{"c1", "c2", "orphan"} {
		wantNoUnit(t, e.scopeOf(id), "")
	}
}

func dbusDaemon(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "dbus.service", "MainPID"))
	if err != nil || pid == 0 {
		t.Fatalf("MainPID of dbus.service: %d, %v", pid, err)
	}
	return pid
}

// wantSystemdError compares an error of a call that needs systemd.
func wantSystemdError(t *testing.T, call string, err error) {
	t.Helper()
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "systemd") ||
		!strings.Contains(err.Error(), "D-Bus") {
		t.Errorf("%s: %v, want failed precondition that names systemd and D-Bus", call, err)
	}
}

// stopDBus makes the D-Bus daemon one that accepts and does not answer. The returned function lets it go on.
func stopDBus(t *testing.T) (goOn func()) {
	t.Helper()
	pid := dbusDaemon(t)
	goOn = func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // it goes on already
	t.Cleanup(goOn)
	harness.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	return goOn
}

func within(t *testing.T, limit time.Duration, what string, call func() error) error {
	t.Helper()
	begin := time.Now()
	err := call()
	if took := time.Since(begin); took > limit {
		t.Errorf("%s took %v, want %v at most", what, took, limit)
	}
	return err
}

func TestSystemd_ThatDoesNotAnswer(t *testing.T) {
	e := newSystemdEnv(t)
	needGuest(t)
	const bound, once, soon = 30 * time.Second, 15 * time.Second, 5 * time.Second
	c := e.run("c1", config{opts: with(e.scoped("c1"))}, "sleep", "1000")
	dir := cgroupOf(t, e.scopeOf("c1"))
	goOn := stopDBus(t)

	wantSystemdError(t, "create", within(t, bound, "create", func() error {
		_, err := e.tryCreate("c2", config{opts: with(e.scoped("c2"))}, "true")
		return err
	}))
	updated := make(chan error, 1)
	go func() { updated <- c.Update(e.ctx, pidsLimit(33)) }()
	// Whatever hangs, these answer.
	e.must(within(t, soon, "status", func() error { _, err := c.process.Status(e.ctx); return err }), "status")
	wantSystemdError(t, "update", within(t, once, "update", func() error { return <-updated }))
	x := c.exec("e1", config{}, nil, "true")
	e.must(within(t, soon, "exec", func() error { return x.Start(e.ctx) }), "start e1")
	x.wantExit(0)
	e.must(within(t, soon, "kill", func() error { return c.process.Kill(e.ctx, syscall.SIGKILL) }), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	wantSystemdError(t, "delete",
		within(t, soon, "delete", func() error { _, err := c.process.Delete(e.ctx); return err }))
	wantGone(t, dir)
	goOn()
	c.delete()
	wantNoUnit(t, e.scopeOf("c1"), dir)
	wantNoUnit(t, e.scopeOf("c2"), "")
}
