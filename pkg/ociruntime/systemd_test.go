// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	lcsystemd "github.com/opencontainers/cgroups/systemd"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/stdio"
)

// silentBus makes the system's D-Bus one that accepts connections and never answers.
func silentBus(t *testing.T) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "bus")
	listener, err := net.Listen("unix", address)
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) }) // nobody accepts: the backlog does
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
	if lcsystemd.IsRunningSystemd() {
		t.Skip("SKIPPED: this machine was booted with systemd")
	}
	config := newConfig(t, "true")
	config.Spec.Linux.CgroupsPath, config.SystemdCgroup = "a.slice:b:c", true
	_, err := tryCreate(t, t.Context(), config)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Create = %v, want failed precondition", err)
	}
	wantText(t, err, "linux.cgroupsPath", "a.slice:b:c", "systemd")
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
		wantText(t, err, "not a directory")
	}
}

// madeUnit is the manager of a unit that is there.
type madeUnit struct{ cgroups.Manager }

func (madeUnit) Apply(int) error { return nil }

// What was made in vain is not left on disk because systemd does not answer;
// what can be deleted again is.
func TestDiscard_LeavesNothingWhenSystemdIsSilent(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	ran := filepath.Join(filepath.Dir(config.Bundle), "ran")
	config.Spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo >> " + ran}}}}
	b := create(t, config)
	c, ok := b.RuntimeContainer.(*container)
	if !ok {
		t.Fatalf("Create = %T, want a container", b.RuntimeContainer)
	}
	must(t, b.Init().Signal(unix.SIGKILL))
	b.wait()
	c.lc.Config().Cgroups.Systemd = true // of which there may be none here
	c.creation.unit.Manager = madeUnit{}
	must(t, c.creation.unit.Apply(0))
	silentBus(t)
	state := stateDir(config.Root, config.ID)

	if err := b.Destroy(); !errors.Is(err, systemd.ErrSilent) {
		t.Errorf("Destroy = %v, want %v", err, systemd.ErrSilent)
	}
	if _, err := os.Stat(state); err != nil {
		t.Errorf("state directory after a Destroy that can be tried again: %v", err)
	}
	if left := cgroupDirs(t, config); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
	if err := b.Discard(); !errors.Is(err, systemd.ErrSilent) {
		t.Errorf("Discard = %v, want %v", err, systemd.ErrSilent)
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("state directory after Discard: %v, want it gone", err)
	}
	if err := c.initFD.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Close of init's pidfd after Discard = %v, want it closed already", err)
	}
	if text, err := os.ReadFile(ran); string(text) != "\n" {
		t.Errorf("the poststop hook wrote %q, %v, want one line", text, err)
	}
}

// The cgroup and systemd share one time, of which systemd has a part in any case.
func TestDestroy_WaitsForSystemdInWhatTheCgroupLeft(t *testing.T) {
	silentBus(t)
	gone := cgroup.New(map[string]string{"": "/sys/fs/cgroup/" + parent() + "/gone"})
	ctx, cancel := context.WithTimeout(t.Context(), unitTimeout/100)
	defer cancel()
	begin := time.Now()
	if err := endCgroup(ctx, gone, true); !errors.Is(err, systemd.ErrSilent) {
		t.Errorf("endCgroup = %v, want %v", err, systemd.ErrSilent)
	}
	if took := time.Since(begin); took < unitTimeout || took >= destroyTimeout {
		t.Errorf("endCgroup took %v, want %v", took, unitTimeout)
	}
}

func TestKeepCPUSet_TellsSystemdAlone(t *testing.T) {
	silentBus(t)
	if err := new(container).KeepCPUSet(t.Context(), "0-1", "0"); err != nil {
		t.Errorf("KeepCPUSet of a cgroup that is not systemd's = %v, want nil", err)
	}
}

// libcontainer asks systemd for the scope while criu restores, and nobody could end that.
func TestRestore_DoesNotBeginWhileSystemdIsSilent(t *testing.T) {
	restored, let := restoringCriu(t)
	let()
	c := image(t)
	r, err := testRuntime.Create(t.Context(), c, nil)
	must(t, err)
	config := r.(*container).lc.Config()
	config.Cgroups.Systemd = true // of which there may be none here
	silentBus(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	streams, err := stdio.Open(t.Context(), c.IO, c.IOOwner)
	must(t, err)
	if _, err := r.Restore(ctx, streams); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "systemd") {
		t.Errorf("Restore = %v, want that systemd did not answer in time", err)
	}
	if _, err := os.Stat(restored); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("criu has run: %v", err)
	}
	config.Cgroups.Systemd = false
	must(t, r.Destroy())
	must(t, streams.Close())
	wantNothingLeft(t, c)
}
