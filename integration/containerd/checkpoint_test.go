// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

func TestCheckpoint_WithoutCRIUTheErrorNamesIt(t *testing.T) {
	harness.NotWithOptions(t)
	harness.OursOnly(t, "an error that says what is missing")
	t.Setenv("PATH", t.TempDir()) // containerd, and its shims, then find the tools and nothing else
	e := newEnvOn(t, ownContainerd(t))
	image := filepath.Join(t.TempDir(), "image")
	wantMissing := func(what string, err error) {
		t.Helper()
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), `"criu"`) {
			t.Errorf("%s = %v, want NotImplemented that names criu", what, err)
		}
	}
	c := e.run("c", config{}, "sleep", "1000")
	_, err := c.Task.Checkpoint(e.ctx, client.WithCheckpointImagePath(image))
	wantMissing("checkpoint", err)
	if status := c.status("c"); status.Status != client.Running {
		t.Errorf("after the refused checkpoint = %+v, want running", status)
	}
	_, err = e.tryCreate("r", config{task: []client.NewTaskOpts{client.WithRestoreImagePath(image)}}, "sleep", "1000")
	wantMissing("create from a checkpoint", err)
	_, err = c.Task.Delete(e.ctx, client.WithProcessKill)
	e.must(err, "delete")
}

// needCriu skips a test where there is no criu that works with the kernel: Debian's 3.17 does not with Linux 6.18.
func needCriu(tb testing.TB) {
	tb.Helper()
	if out, err := exec.Command("criu", "check").CombinedOutput(); err != nil {
		harness.Lacking(tb, "criu", "a criu that works with this kernel: "+err.Error()+"\n"+string(out))
	}
	if _, err := exec.LookPath("iptables-restore"); err != nil {
		harness.Lacking(tb, "criu", "iptables-restore, which criu calls")
	}
}

// counting prints a number at each SIGUSR1.
var counting = []string{"/bin/sh", "-c", "n=5; trap 'n=$((n+1)); echo $n' USR1; echo up; while :; do sleep 0.05; done"}

func withExit(info *client.CheckpointTaskInfo) error {
	info.Options.(*runcoptions.CheckpointOptions).Exit = true
	return nil
}

// count starts a container that counts, which has come to 6 then.
func (e *env) count(id string, cfg config) *task {
	e.Helper()
	c := e.run(id, cfg, counting...)
	c.out.WaitFor(e, "up\n")
	e.must(c.process.Kill(e.ctx, syscall.SIGUSR1), "SIGUSR1")
	c.out.WaitFor(e, "6\n")
	return c
}

// restore makes a container of an image, and has it count on.
func (e *env) restore(id, image string, cfg config) *task {
	e.Helper()
	cfg.task = append(cfg.task, client.WithRestoreImagePath(image))
	c := e.run(id, cfg, counting...)
	e.must(c.process.Kill(e.ctx, syscall.SIGUSR1), "SIGUSR1")
	c.out.WaitFor(e, "7\n")
	return c
}

// end checkpoints a container, which ends with it and is still to be deleted.
func (t *task) end() (image string) {
	t.e.Helper()
	image = filepath.Join(t.e.TempDir(), "image")
	_, err := t.Checkpoint(t.e.ctx, client.WithCheckpointImagePath(image), withExit)
	t.e.must(err, "checkpoint")
	return image
}

// The checkpoint is made while an exec runs, which is no part of it.
func TestCheckpoint_OfAContainerWhoseExecsHaveCgroups(t *testing.T) {
	harness.OursOnly(t, "exec-limits")
	needCriu(t)
	e := newEnv(t)
	for i, opts := range []oci.SpecOpts{execLimits("on"), execLimits("pids=50,memory=64Mi")} {
		cfg := config{opts: with(opts)}
		c := e.count(fmt.Sprint("c", i), cfg)
		x := c.family("e1")
		image := c.end()
		x.wantExit(137)
		c.wantExit(137)
		r := e.restore(fmt.Sprint("r", i), image, cfg)
		r.wantProcesses(2) // the shell and its sleep
		y := r.family("e1")
		if groups := r.execCgroups(); len(groups) == 0 {
			t.Error("no cgroup of the exec in the restored container")
		}
		y.kill()
		r.kill()
		if left := r.execCgroups(); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
	}
}

func TestSystemd_CheckpointIsRestoredInAScope(t *testing.T) {
	needCgroup2(t)
	needCriu(t)
	e := newSystemdEnv(t)
	limit := oci.WithMemoryLimit(64 * mib)
	c := e.count("c1", config{opts: with(e.scoped("c1"), limit)})
	first := cgroupOf(t, e.scopeOf("c1"))
	image := c.end()
	c.wantExit(137)
	wantNoUnit(t, e.scopeOf("c1"), first)
	r := e.restore("c2", image, config{opts: with(e.scoped("c2"), limit)})
	unit := e.scopeOf("c2")
	dir := cgroupOf(t, unit)
	pids := strings.Fields(control(t, dir, "cgroup.procs"))
	if !slices.Contains(pids, strconv.Itoa(int(r.Task.Pid()))) {
		t.Errorf("%s has the processes %v, want %d among them", unit, pids, r.Task.Pid())
	}
	wantProperty(t, unit, "MemoryMax", strconv.Itoa(64*mib))
	if got, want := control(t, dir, "memory.max"), strconv.Itoa(64*mib); got != want {
		t.Errorf("memory.max = %s, want %s", got, want)
	}
	r.kill()
	wantNoUnit(t, unit, dir)
}
