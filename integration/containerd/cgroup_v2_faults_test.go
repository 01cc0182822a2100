// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

// makeCgroup makes a cgroup beside those of the test's containers; it ends with the test.
func (e *env) makeCgroup(name string) string {
	e.Helper()
	dir := filepath.Join("/sys/fs/cgroup", e.namespace, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			e.Error(err)
		}
	})
	return dir
}

// wantGone checks that a cgroup was removed.
func wantGone(tb testing.TB, dir string) {
	tb.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		tb.Errorf("cgroup %s: %v, want it gone", dir, err)
	}
}

func TestCgroup2_ThatCannotTakeTheContainer(t *testing.T) {
	needCgroup2(t)
	e := newEnv(t)
	memory := oci.WithMemoryLimit(64 * mib)
	for _, tt := range []struct {
		name, file, value string
		want              error
	}{
		// First, since those above must not have memory for it yet.
		{"a threaded cgroup", "cgroup.type", "threaded", errdefs.ErrFailedPrecondition},
		{"no more cgroups below", "cgroup.max.descendants", "0", errdefs.ErrResourceExhausted},
		{"no cgroups so deep", "cgroup.max.depth", "0", errdefs.ErrResourceExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := "c-" + strings.ReplaceAll(tt.file, ".", "-")
			top := e.makeCgroup(id) // the domain of the threaded one
			parent := e.makeCgroup(id + "/parent")
			writeControl(t, parent, tt.file, tt.value)
			_, err := e.tryCreate(id, config{opts: with(memory, oci.WithCgroup("/"+e.namespace+"/"+id+"/parent/c1"))},
				"true")
			wantError(t, err, tt.want, "linux.cgroupsPath", top)
			wantGone(t, filepath.Join(parent, "c1"))
		})
	}
}

func TestCgroup2_WithoutAController(t *testing.T) {
	needCgroup2(t)
	const all = "memory" // boot with cgroup_disable=memory
	if slices.Contains(strings.Fields(control(t, "/sys/fs/cgroup", "cgroup.controllers")), all) {
		lacking(t, "nomemory", "a kernel without the memory controller (cgroup_disable=memory)")
	}
	e := newEnv(t)
	_, err := e.tryCreate("c1", config{opts: with(oci.WithMemoryLimit(64 * mib))}, "true")
	wantError(t, err, errdefs.ErrFailedPrecondition, "linux.resources.memory.limit", "controller")
	c := e.run("c2", config{}, "sleep", "1000")
	limit := int64(64 * mib)
	err = c.Update(e.ctx, client.WithResources(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}))
	wantError(t, err, errdefs.ErrFailedPrecondition, "linux.resources.memory.limit", "memory.max")
	e.must(c.Update(e.ctx, pidsLimit(33)), "update")
	if m := c.metrics(); m == nil {
		t.Error("no metrics")
	}
	c.kill()
}

// Somebody moves the processes of one container of a pod elsewhere and removes its cgroup.
func TestCgroup2_RemovedWhileTheContainerRuns(t *testing.T) {
	needCgroup2(t)
	e := newEnv(t)
	rest := e.run("rest", config{opts: with(inOneShim)}, "sleep", "1000")
	c := e.run("c1", config{opts: with(inOneShim)}, "sh", "-c", "sleep 1000 & wait")
	dir := filepath.Join("/sys/fs/cgroup", control(t, "/proc/"+strconv.Itoa(int(c.Task.Pid())), "cgroup")[len("0::"):])
	elsewhere := e.makeCgroup("elsewhere")
	harness.Eventually(t, "cgroup is empty", func() error {
		pids := strings.Fields(control(t, dir, "cgroup.procs"))
		for _, pid := range pids {
			writeControl(t, elsewhere, "cgroup.procs", pid)
		}
		if len(pids) > 0 {
			return fmt.Errorf("it had processes %v", pids)
		}
		return os.Remove(dir)
	})
	// containerd leaves out what is not found (plugins/services/tasks, getTasksMetrics).
	if m, err := c.Metrics(e.ctx); err == nil || !strings.Contains(err.Error(), "no metrics received") {
		t.Errorf("metrics = %v, %v, want none", m, err)
	}
	if err := c.Update(e.ctx, pidsLimit(33)); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("update: %v, want not found", err)
	}
	e.must(c.process.Kill(e.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
	c.wantExit(137)
	wantGone(t, dir)

	wantStatus(rest, client.Running)
	if m := rest.metrics(); m == nil {
		t.Error("no metrics of the rest of the pod")
	}
	y := rest.exec("e1", config{}, nil, "true")
	e.must(y.Start(e.ctx), "start an exec in the rest of the pod")
	y.wantExit(0)
	rest.kill()
}
