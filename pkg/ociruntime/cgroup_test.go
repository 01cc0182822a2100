// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
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

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// stranger is a process of the host that was moved into the cgroup dirs.
func stranger(t *testing.T, dirs []string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/busybox", "sleep", "1000")
	defer testReaper.Suspend()() // until it is known whose child it is
	must(t, cmd.Start())
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
		must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	}
	return cmd
}

// Whoever is in the container's cgroup is the container's, as with a scope of
// systemd: without this the cgroup could not be removed.
func TestDestroy_KillsAProcessThatWasMovedIn(t *testing.T) {
	b := create(t, newConfig(t, "sleep", "1000")).start()
	moved := stranger(t, cgroupDirs(t, b.config))
	must(t, b.Init().Signal(syscall.SIGKILL))
	b.wait()
	begin := time.Now()
	if err := b.Destroy(); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if took := time.Since(begin); took > destroyTimeout {
		t.Errorf("Destroy took %v, want less than %v", took, destroyTimeout)
	}
	err := moved.Wait()
	if status, ok := moved.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the process that was moved in: %v, want it killed", err)
	}
}

// Cgroups that the workload made go with the container.
func TestDestroy_RemovesNestedCgroups(t *testing.T) {
	b := create(t, newConfig(t, "sleep", "1000")).start()
	for _, dir := range cgroupDirs(t, b.config) {
		must(t, os.MkdirAll(filepath.Join(dir, "outer/inner"), 0o755))
	}
	must(t, b.Init().Signal(syscall.SIGKILL))
	b.wait()
	if err := b.Destroy(); err != nil {
		t.Errorf("Destroy: %v", err)
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
		must(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { _ = os.Remove(dir) }) // the container's Destroy is to have removed it
		made = append(made, dir)
	}
	return made
}

func TestCreate_AdoptsAnEmptyCgroup(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	made := madeBefore(t, config)
	must(t, os.WriteFile(filepath.Join(made[len(made)-1], "pids.max"), []byte("77"), 0))
	b := create(t, config).start()
	limit, err := os.ReadFile(filepath.Join(b.Cgroup().Path("pids"), "pids.max"))
	if err != nil || strings.TrimSpace(string(limit)) != "77" {
		t.Errorf("pids.max of the adopted cgroup: %q, %v, want what was there: 77", limit, err)
	}
}

func noStreams(t *testing.T) *stdio.Streams {
	t.Helper()
	streams, err := stdio.Open(t.Context(), stdio.Config{}, idmap.Owner{})
	must(t, err)
	t.Cleanup(func() { must(t, streams.Close()) })
	return streams
}

// Two containers that share a cgroup would be killed and limited together.
func TestCreate_RefusesACgroupInUse(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	dirs := madeBefore(t, config)
	other := stranger(t, dirs)
	_, err := New(testReaper).Create(t.Context(), config, noStreams(t))
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Create in a cgroup in use: %v, want failed precondition", err)
	}
	wantText(t, err, config.Spec.Linux.CgroupsPath, "not empty")
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process in the cgroup: %v, want it to live", err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("the cgroup in use: %v", err)
		}
	}
}

func TestCreate_RefusesAFrozenCgroup(t *testing.T) {
	config := newConfig(t, "sleep", "1000")
	made := madeBefore(t, config)
	file, frozen, thawed := filepath.Join(made[0], "cgroup.freeze"), "1", "0"
	if cgroups.Mode() != cgroups.Unified {
		file, frozen, thawed = filepath.Join(made[1], "freezer.state"), "FROZEN", "THAWED"
	}
	must(t, os.WriteFile(file, []byte(frozen), 0))
	t.Cleanup(func() { must(t, os.WriteFile(file, []byte(thawed), 0)) })
	_, err := New(testReaper).Create(t.Context(), config, noStreams(t))
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Create in a frozen cgroup: %v, want failed precondition", err)
	}
	wantText(t, err, config.Spec.Linux.CgroupsPath, "frozen")
}
