// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/errdefs"
	godbus "github.com/godbus/dbus/v5"
	ocicgroups "github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
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

// byEach runs a test for each way to start an init.
func byEach(t *testing.T, test func(t *testing.T, way func(process.Config) process.Config)) {
	t.Helper()
	t.Run("launcher", func(t *testing.T) { test(t, func(c process.Config) process.Config { return c }) })
	t.Run("libcontainer", func(t *testing.T) {
		test(t, func(c process.Config) process.Config { c.NoPivotRoot = true; return c })
	})
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
	made, err := begin(c, lc)
	must(t, err)
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
