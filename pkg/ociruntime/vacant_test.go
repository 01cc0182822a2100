// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	godbus "github.com/godbus/dbus/v5"
	ocicgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
)

// wantAlive checks that a stranger runs.
func wantAlive(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil || strings.Contains(string(stat), ") Z ") {
		t.Errorf("process %d of others: %q, %v, want it to live", cmd.Process.Pid, stat, err)
	}
}

// libcontainer looks in the hierarchy of devices only; a kill goes through all.
func TestCreate_RefusesACgroupInUseInOneHierarchy(t *testing.T) {
	if cgroups.Mode() == cgroups.Unified {
		t.Skip("SKIPPED: cgroup v2 has one hierarchy")
	}
	for _, below := range []string{"", "/below/it"} {
		for _, hierarchy := range []string{"pids", "freezer", "memory"} {
			t.Run(hierarchy+below, func(t *testing.T) {
				config := newConfig(t, "sleep", "1000")
				dir := filepath.Join("/sys/fs/cgroup", hierarchy, config.Spec.Linux.CgroupsPath)
				must(t, os.MkdirAll(dir+below, 0o755))
				t.Cleanup(func() { _ = cgroup.New(map[string]string{"": dir}).Remove(bounded(t)) })
				other := stranger(t, []string{dir + below})
				_, err := testRuntime.Create(t.Context(), config, noStreams(t))
				if !errdefs.IsFailedPrecondition(err) {
					t.Errorf("Create in a cgroup in use: %v, want failed precondition", err)
				}
				wantText(t, err, fmt.Sprintf("linux.cgroupsPath %q", config.Spec.Linux.CgroupsPath), dir,
					fmt.Sprintf("%d (busybox", other.Process.Pid))
				must(t, Remove(bounded(t), config)) // as the delete command does next
				wantAlive(t, other)
				if dirs := cgroupDirs(t, config); len(dirs) != 1 {
					t.Errorf("cgroups %v, want none made", dirs)
				}
				if _, err := os.Stat(stateDir(config.Root, config.ID)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("state directory: %v, want none", err)
				}
			})
		}
	}
}

// On v2 libcontainer looks for processes, and another container of this shim may be made between that and reserve.
func TestReserve_LooksOnCgroup2AsWell(t *testing.T) {
	root := map[cgroups.CGMode]string{
		cgroups.Unified: "/sys/fs/cgroup", cgroups.Hybrid: "/sys/fs/cgroup/unified",
	}[cgroups.Mode()]
	if root == "" {
		lacking(t, "cgroup2", "a cgroup v2 hierarchy")
	}
	dir, err := os.MkdirTemp(root, "shim-test-")
	must(t, err)
	group := cgroup.New(map[string]string{"": dir})
	t.Cleanup(func() { must(t, group.Remove(context.Background())) })
	made := &creation{group: group}
	must(t, testRuntime.reserve(made))
	testRuntime.end(made)
	other := stranger(t, []string{dir})
	err = testRuntime.reserve(made)
	testRuntime.end(made)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("reserve = %v, want failed precondition", err)
	}
	wantText(t, err, dir, fmt.Sprintf("%d (busybox", other.Process.Pid))
}

// sharing is a container with the cgroup of another.
func sharing(t *testing.T, c process.Config, args ...string) process.Config {
	t.Helper()
	other := newConfig(t, args...)
	other.Spec.Linux.CgroupsPath = c.Spec.Linux.CgroupsPath
	return other
}

// byEach runs a test for each way to start an init.
func byEach(t *testing.T, test func(t *testing.T, way func(process.Config) process.Config)) {
	t.Helper()
	t.Run("launcher", func(t *testing.T) { test(t, func(c process.Config) process.Config { return c }) })
	t.Run("libcontainer", func(t *testing.T) {
		test(t, func(c process.Config) process.Config { c.NoPivotRoot = true; return c })
	})
}

// gated is a Runtime that creates a container as far as it has looked at the cgroup, and goes on when it is let.
func gated(t *testing.T) (r *Runtime, looked chan struct{}, goOn func()) {
	t.Helper()
	r, looked, gate := New(testReaper), make(chan struct{}), make(chan struct{})
	launcher := r.launcher
	r.launcher = func() (*native.Program, error) { close(looked); <-gate; return launcher() }
	goOn = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(goOn)
	return r, looked, goOn
}

// createLate begins to create a container, creates another in its cgroup by another Runtime, as another shim would, and
// goes on. It returns the other one, and the error of the first.
//
//nolint:revive // t comes first in a test
func createLate(t *testing.T, ctx context.Context, first, other process.Config) (*box, <-chan error) {
	t.Helper()
	r, looked, goOn := gated(t)
	streams, failed := noStreams(t), make(chan error, 1)
	go func() { _, err := r.Create(ctx, first, streams); failed <- err }()
	within(t, "the look at the cgroup", looked)
	b := create(t, other)
	goOn()
	return b, failed
}

// wantWinner checks that the container lives whose cgroup another was created in, and that nothing is left of that one.
func wantWinner(t *testing.T, b *box, loser process.Config, err error) {
	t.Helper()
	if err == nil || errors.Is(err, process.ErrLeft) {
		t.Errorf("Create that fails = %v, want its error alone", err)
	}
	if _, err := os.Stat(stateDir(loser.Root, loser.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state directory of the one that failed: %v, want none", err)
	}
	must(t, Remove(bounded(t), loser)) // as the delete command does next
	select {
	case <-b.dead:
		t.Fatalf("the container that was created: %+v, want it to live", b.exit)
	default:
	}
	b.start()
	if r := b.exec(t.Context(), command("true")); r.status != 0 || r.err != nil {
		t.Errorf("exec in the container that was created: %+v", r)
	}
}

// Both have found the cgroup empty.
func TestCreate_ThatFailsLeavesAnotherContainer(t *testing.T) {
	byEach(t, func(t *testing.T, way func(process.Config) process.Config) {
		t.Helper()
		loser := way(newConfig(t, "/nonexistent"))
		b, failed := createLate(t, t.Context(), loser, way(sharing(t, loser, "sleep", "1000")))
		wantWinner(t, b, loser, <-failed)
	})
}

// The end of the context kills what sets init up, which may be a hook in the container.
func TestCreate_ThatIsInterruptedLeavesAnotherContainer(t *testing.T) {
	loser := newConfig(t, "sleep", "1000")
	begun := note(loser, "begun")
	loser.Spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{shell("echo > " + begun + "; exec sleep 1000")}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b, failed := createLate(t, ctx, loser, sharing(t, loser, "sleep", "1000"))
	eventually(t, "the hook", func() bool { _, err := os.Stat(begun); return err == nil })
	cancel()
	wantWinner(t, b, loser, <-failed)
}

func TestDiscard_LeavesAnotherContainer(t *testing.T) {
	c := newConfig(t, "true")
	first := create(t, c)
	must(t, first.Init().Signal(syscall.SIGKILL))
	first.wait()
	b := create(t, sharing(t, c, "sleep", "1000"))
	must(t, first.Discard())
	wantWinner(t, b, c, errors.New("init was killed"))
}

// What a hook leaves in the cgroup is the container's, even if the hook has ended.
func TestCreate_ThatFailsKillsWhatItsHooksLeft(t *testing.T) {
	byEach(t, func(t *testing.T, way func(process.Config) process.Config) {
		t.Helper()
		for _, hook := range []string{"sleep 1000 >/dev/null 2>&1 &", "(sleep 1000 & sleep 1000) >/dev/null 2>&1 &"} {
			c := newConfig(t, "sleep", "1000")
			dirs := "/sys/fs/cgroup" + c.Spec.Linux.CgroupsPath
			if cgroups.Mode() != cgroups.Unified {
				dirs = "/sys/fs/cgroup/pids" + c.Spec.Linux.CgroupsPath
			}
			left := note(c, "left")
			c.Spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
				shell("echo $$ > " + dirs + "/cgroup.procs; " + hook + " echo $! > " + left + "; exit 1"),
			}}
			_, err := tryCreate(t, t.Context(), way(c))
			if err == nil || errors.Is(err, process.ErrLeft) {
				t.Errorf("Create with a hook that fails = %v, want its error alone", err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(read(t, left)))
			must(t, err)
			wantDead(t, []int{pid})
			wantNothingLeft(t, c)
		}
	})
}

// A shim can tell what another of its containers has in a cgroup only when that has an init.
func TestCreate_RefusesACgroupThatAnotherIsCreatedIn(t *testing.T) {
	first := newConfig(t, "sleep", "1000")
	r, looked, goOn := gated(t)
	created := make(chan *box, 1)
	go func() { created <- createBy(t, r, first) }()
	within(t, "the look at the cgroup", looked)
	other := sharing(t, first, "sleep", "1000")
	_, err := r.Create(t.Context(), other, noStreams(t))
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Create in the cgroup of another = %v, want failed precondition", err)
	}
	wantText(t, err, fmt.Sprintf("linux.cgroupsPath %q", other.Spec.Linux.CgroupsPath), first.ID, "being created")
	if _, err := os.Stat(stateDir(other.Root, other.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state directory: %v, want none", err)
	}
	goOn()
	(<-created).start()
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
	must(t, err)
	lc, err := libcontainer.Create(c.Root, c.ID, config)
	must(t, err)
	made, err := testRuntime.begin(c, lc)
	must(t, err)
	defer testRuntime.end(made)
	taken := &takenUnit{}
	made.unit.Manager = taken
	if err := made.unit.Apply(1); !systemd.UnitExists(err) {
		t.Errorf("start = %v, want that the unit exists", err)
	}
	config.Cgroups.Systemd = true // of which there may be none here
	must(t, testRuntime.undoCreate(made, made.removeMade))
	if taken.stopped {
		t.Error("the unit of others was stopped")
	}
	wantNothingLeft(t, c)
}
