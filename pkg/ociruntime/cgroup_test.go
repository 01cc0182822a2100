// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	godbus "github.com/godbus/dbus/v5"
	"github.com/moby/sys/mountinfo"
	ocicgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// stranger is a process of the host that was moved into the cgroup dirs.
func stranger(t *testing.T, dirs []string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/busybox", "sleep", "1000")
	defer testReaper.Suspend()() // until it is known whose child it is
	testx.Must(t, cmd.Start())
	testReaper.Register(cmd.Process.Pid)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // dead already is as good
		_ = cmd.Wait()         // that it was killed is what is wanted
		testReaper.Unregister(cmd.Process.Pid)
	})
	if len(dirs) == 0 {
		t.Fatal("the container has no cgroup")
	}
	for _, dir := range dirs {
		testx.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	}
	return cmd
}

// A process in the container's cgroup is the container's, as with a scope of systemd: it is killed with init. Cgroups
// that the workload made go with the container.
func TestDestroy_KillsAProcessThatWasMovedIn(t *testing.T) {
	b := create(t, newConfig(t, "sleep", "1000")).start()
	dirs := cgroupDirs(t, b.config)
	moved := stranger(t, dirs)
	for _, dir := range dirs {
		testx.Must(t, os.MkdirAll(filepath.Join(dir, "outer/inner"), 0o755))
	}
	testx.Must(t, b.Init().Signal(syscall.SIGKILL))
	b.wait()
	begin := time.Now()
	testx.Must(t, b.Destroy())
	if took := time.Since(begin); took > destroyTimeout {
		t.Errorf("Destroy took %v, want less than %v", took, destroyTimeout)
	}
	err := moved.Wait()
	if status, ok := moved.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the process that was moved in: %v, want it killed", err)
	}
	wantNothingLeft(t, b.config)
}

// madeBefore makes the cgroups that config names, as a scheduler may that sets
// limits before it creates the container.
func madeBefore(t *testing.T, config process.Config) []string {
	t.Helper()
	var made []string
	roots := []string{"/sys/fs/cgroup"}
	if cgroups.Mode() != cgroups.Unified {
		// On v1 libcontainer looks for processes in the hierarchy of devices.
		roots = []string{"/sys/fs/cgroup/devices", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids"}
	}
	for _, root := range roots {
		dir := filepath.Join(root, config.Spec.Linux.CgroupsPath)
		testx.Must(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { _ = os.Remove(dir) }) // the container's Destroy is to have removed it
		made = append(made, dir)
	}
	return made
}

func TestCreate_AdoptsAnEmptyCgroup(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	made := madeBefore(t, config)
	testx.Must(t, os.WriteFile(filepath.Join(made[len(made)-1], "pids.max"), []byte("77"), 0))
	b := create(t, config).start()
	if limit := testx.Read(t, filepath.Join(b.Cgroup().Path("pids"), "pids.max")); limit != "77\n" {
		t.Errorf("pids.max of the adopted cgroup: %q, want what was there: 77", limit)
	}
}

func noStreams(t *testing.T) *stdio.Streams {
	t.Helper()
	streams, err := stdio.Open(t.Context(), stdio.Config{}, idmap.Owner{})
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, streams.Close()) })
	return streams
}

// Two containers that share a cgroup would be killed and limited together. libcontainer looks in the hierarchy of
// devices only; a kill goes through all.
func TestCreate_RefusesACgroupInUse(t *testing.T) {
	hierarchies := []string{""}
	if !unified() {
		hierarchies = []string{"devices", "pids", "freezer", "memory"}
	}
	for _, below := range []string{"", "/below/it"} {
		for _, hierarchy := range hierarchies {
			t.Run(hierarchy+below, func(t *testing.T) {
				config := newConfig(t, "sleep", "1000")
				dir := filepath.Join("/sys/fs/cgroup", hierarchy, config.Spec.Linux.CgroupsPath)
				testx.Must(t, os.MkdirAll(dir+below, 0o755))
				t.Cleanup(func() { _ = cgroup.New(map[string]string{"": dir}).Remove(bounded(t)) })
				other := stranger(t, []string{dir + below})
				_, err := testRuntime.Create(t.Context(), config, noStreams(t))
				testx.WantError(t, err, errdefs.ErrFailedPrecondition, fmt.Sprintf("linux.cgroupsPath %q", config.Spec.Linux.CgroupsPath), "not empty")
				if hierarchy != "devices" && hierarchy != "" {
					testx.WantText(t, err, fmt.Sprintf("process %d", other.Process.Pid))
				}
				testx.Must(t, Remove(bounded(t), config)) // as the delete command does next
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", other.Process.Pid))
				if err != nil || strings.Contains(string(stat), ") Z ") {
					t.Errorf("the process in the cgroup: %q, %v, want it to live", stat, err)
				}
				if dirs := cgroupDirs(t, config); len(dirs) != 1 {
					t.Errorf("cgroups %v, want none made", dirs)
				}
				if testx.Exists(stateDir(config.Root, config.ID)) {
					t.Error("there is a state directory")
				}
			})
		}
	}
}

func TestCreate_RefusesAFrozenCgroup(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	made := madeBefore(t, config)
	file, frozen, thawed := filepath.Join(made[0], "cgroup.freeze"), "1", "0"
	if !unified() {
		file, frozen, thawed = filepath.Join(made[1], "freezer.state"), "FROZEN", "THAWED"
	}
	testx.Must(t, os.WriteFile(file, []byte(frozen), 0))
	t.Cleanup(func() { testx.Must(t, os.WriteFile(file, []byte(thawed), 0)) })
	_, err := testRuntime.Create(t.Context(), config, noStreams(t))
	testx.WantError(t, err, errdefs.ErrFailedPrecondition, config.Spec.Linux.CgroupsPath, "frozen")
}

// A mount of cgroup v2 from the host's cgroup namespace sets the options of the whole hierarchy.
func TestCgroupMount_FromTheHostsNamespaceKeepsTheOptions(t *testing.T) {
	options := func() string {
		mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
		testx.Must(t, err)
		if len(mounts) == 0 {
			return ""
		}
		return mounts[0].VFSOptions
	}
	before := options()
	if !strings.Contains(before, "nsdelegate") {
		lacking(t, "cgroup2", "cgroup v2 with the option nsdelegate")
	}
	for name, r := range runtimes() {
		c := newConfig(t, "cat", "/sys/fs/cgroup/cgroup.procs", "/cgroup2/cgroup.procs")
		without(specs.CgroupNamespace)(&c)
		mount(specs.Mount{Destination: "/cgroup2", Type: "cgroup2", Source: "cgroup2"})(&c)
		if unified() {
			mount(specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
				specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup"})(&c)
		} else {
			c.Spec.Process.Args = []string{"cat", "/cgroup2/cgroup.procs"}
		}
		if status := createBy(t, r, c).start().wait().Status; status != 0 {
			t.Errorf("%s: the container ends with %d", name, status)
		}
		if after := options(); after != before {
			t.Errorf("%s: the options of cgroup v2 were %s, and are %s", name, before, after)
		}
	}
}

func TestDepth_OfNestedCgroupsIsLimited(t *testing.T) {
	if cgroups.Mode() == cgroups.Legacy {
		lacking(t, "cgroup2", "a cgroup v2 hierarchy")
	}
	// nested is how deep the kernel lets cgroups be nested in that of a container, up to one more than asked for.
	nested := func(t *testing.T, b *box) (depth int) {
		t.Helper()
		for dir := b.Cgroup().Path(""); depth <= cgroup.MaxDepth; depth++ {
			dir = filepath.Join(dir, "d")
			if err := os.Mkdir(dir, 0o755); errors.Is(err, unix.EAGAIN) {
				return depth
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return depth
	}
	t.Run("after an update", func(t *testing.T) {
		b := create(t, newConfig(t, "sleep", "1000")).start()
		testx.Must(t, b.Update(&specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(512))}}))
		if got := nested(t, b); got != cgroup.MaxDepth {
			t.Errorf("cgroups can be nested %d deep, want %d", got, cgroup.MaxDepth)
		}
	})
	t.Run("by the configuration", func(t *testing.T) {
		if !unified() {
			lacking(t, "unified", "cgroup v2 alone, for linux.resources.unified")
		}
		config := newConfig(t, "sleep", "1000")
		config.Spec.Linux.Resources = &specs.LinuxResources{Unified: map[string]string{cgroup.DepthFile: "2"}}
		if got := nested(t, create(t, config).start()); got != 2 {
			t.Errorf("cgroups can be nested %d deep, want 2 as asked", got)
		}
	})
}

// What a hook leaves in the cgroup is the container's, even if the hook has ended.
func TestCreate_ThatFailsKillsWhatItsHooksLeft(t *testing.T) {
	for name, noPivotRoot := range map[string]bool{"launcher": false, "libcontainer": true} {
		for left, hook := range map[string]string{"a child": "sleep 1000 >/dev/null 2>&1 &", "a family": "(sleep 1000 & sleep 1000) >/dev/null 2>&1 &"} {
			t.Run(name+", "+left, func(t *testing.T) {
				c := newConfig(t, "sleep", "1000")
				c.NoPivotRoot = noPivotRoot
				dir := layout{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}.here() + c.Spec.Linux.CgroupsPath
				left := note(c, "left")
				c.Spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
					shell("echo $$ > " + dir + "/cgroup.procs; " + hook + " echo $! > " + left + "; exit 1"),
				}}
				_, err := tryCreate(t, t.Context(), c)
				if err == nil || errors.Is(err, process.ErrLeft) {
					t.Errorf("Create with a hook that fails = %v, want its error alone", err)
				}
				pid, err := strconv.Atoi(strings.TrimSpace(testx.Read(t, left)))
				testx.Must(t, err)
				wantDead(t, []int{pid})
				wantNothingLeft(t, c)
			})
		}
	}
}

// takenUnit is the manager of a scope that systemd has already, since it belongs to somebody else.
type takenUnit struct {
	ocicgroups.Manager
	stopped bool
}

func (u *takenUnit) Apply(int) error {
	return fmt.Errorf("start unit: %w", godbus.Error{Name: "org.freedesktop.systemd1.UnitExists"})
}

func (u *takenUnit) Destroy() error { u.stopped = true; return nil }

func TestCreate_StopsNoUnitOfOthers(t *testing.T) {
	c := newConfig(t, "sleep", "1000")
	config, err := testRuntime.translate(c)
	testx.Must(t, err)
	made, err := testRuntime.newContainer(c, config)
	testx.Must(t, err)
	taken := &takenUnit{Manager: made.plain}
	made.plain = taken
	config.Cgroups.Systemd = true // of which there may be none here
	if err := made.startInit(t.Context(), noStreams(t)); !systemd.UnitExists(err) {
		t.Errorf("start = %v, want that the unit exists", err)
	}
	dirs := madeBefore(t, c)
	other := stranger(t, dirs)
	testx.Must(t, made.undoCreate())
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", other.Process.Pid))
	if err != nil || strings.Contains(string(stat), ") Z ") || taken.stopped {
		t.Errorf("the process in the cgroup of others: %q, %v, want it to live; unit stopped: %v", stat, err, taken.stopped)
	}
	if testx.Exists(stateDir(c.Root, c.ID)) {
		t.Error("there is a state directory")
	}
}

// silentBus makes the system's D-Bus one that accepts connections and never answers.
func silentBus(t *testing.T) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "bus")
	listener, err := net.Listen("unix", address)
	testx.Must(t, err)
	t.Cleanup(func() { testx.Must(t, listener.Close()) }) // nobody accepts: the backlog does
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+address)
}

// absentBus makes the system's D-Bus one that is not there.
func absentBus(t *testing.T) {
	t.Helper()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "bus"))
}

// What is left in the cgroup of a scope ends whether systemd answers or not.
func TestSystemd_IsNotNeededToEndAScope(t *testing.T) {
	for _, tc := range []struct {
		name string
		bus  func(*testing.T)
		want error
	}{
		{"it is silent", silentBus, systemd.ErrSilent},
		{"it is absent", absentBus, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := newConfig(t, "true")
			dirs := madeBefore(t, config)
			left := stranger(t, dirs)
			paths := map[string]string{"": dirs[0]}
			if len(dirs) > 1 { // cgroup v1
				paths = map[string]string{"devices": dirs[0], "freezer": dirs[1], "pids": dirs[2]}
			}
			tc.bus(t)
			if err := endCgroup(bounded(t), cgroup.New(paths), true); !errors.Is(err, tc.want) {
				t.Errorf("endCgroup = %v, want %v", err, tc.want)
			}
			_ = left.Wait() // that it was killed is what is wanted
			for _, dir := range dirs {
				if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("cgroup %s: %v, want it gone", dir, err)
				}
			}
		})
	}
}

func TestSystemd_IsNeededForAScope(t *testing.T) {
	if onSystemd() {
		t.Skip("SKIPPED: this machine was booted with systemd")
	}
	config := newConfig(t, "true")
	config.Spec.Linux.CgroupsPath, config.SystemdCgroup = "a.slice:b:c", true
	_, err := tryCreate(t, t.Context(), config)
	testx.WantError(t, err, errdefs.ErrFailedPrecondition, "linux.cgroupsPath", "a.slice:b:c", "systemd")
}

// What the launcher cannot start libcontainer tries again, in a scope of the same name.
func TestSystemd_ScopeIsGoneBeforeTheSecondTry(t *testing.T) {
	if !onSystemd() {
		t.Skip("SKIPPED: this machine was not booted with systemd: make test-systemd")
	}
	for range 20 {
		config := limited(t, nil)
		mount(specs.Mount{Destination: "/tmp", Type: "bind", Source: "/etc/passwd", Options: []string{"bind"}})(&config)
		_, err := tryCreate(t, t.Context(), config)
		testx.WantText(t, err, "not a directory")
	}
}

// What was made in vain is not left on disk because systemd does not answer; what can be deleted again is.
func TestDiscard_LeavesNothingWhenSystemdIsSilent(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	ran := note(config, "ran")
	config.Spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{shell("echo >> " + ran)}}
	b := create(t, config)
	c := b.RuntimeContainer.(*container)
	testx.Must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
	c.lc.Config().Cgroups.Systemd = true // of which there may be none here
	silentBus(t)
	state := stateDir(config.Root, config.ID)

	testx.WantError(t, b.Destroy(), systemd.ErrSilent)
	if !testx.Exists(state) {
		t.Error("no state directory after a Destroy that can be tried again")
	}
	if left := cgroupDirs(t, config); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
	testx.WantError(t, b.Discard(), systemd.ErrSilent)
	if testx.Exists(state) {
		t.Error("there is a state directory after Discard")
	}
	if text := testx.Read(t, ran); text != "\n" {
		t.Errorf("the poststop hook wrote %q, want one line", text)
	}
}

// libcontainer asks systemd for the scope while criu restores, and nobody could end that.
func TestRestore_DoesNotBeginWhileSystemdIsSilent(t *testing.T) {
	restored, let := restoringCriu(t)
	let()
	r, streams := begun(t, image(t))
	config := r.(*container).lc.Config()
	config.Cgroups.Systemd = true // of which there may be none here
	defer func() { config.Cgroups.Systemd = false }()
	silentBus(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := r.Restore(ctx, streams)
	testx.WantError(t, err, context.DeadlineExceeded, "systemd")
	if testx.Exists(restored) {
		t.Error("criu has run")
	}
}
