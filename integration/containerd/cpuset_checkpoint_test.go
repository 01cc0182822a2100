// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/client"
)

// What a checkpoint has is where the container could run when it was made.
func TestCPUSet_OfARestoredContainer(t *testing.T) {
	for _, program := range []string{"criu", "iptables-restore"} {
		if _, err := exec.LookPath(program); err != nil {
			lacking(t, "criu", program)
		}
	}
	e := newCPUSetEnv(t)
	// containerd's client restores only with options of the runc shim, which can allow no other source than the parent.
	e.allowed = nil
	parent := source{e, filepath.Join("/sys/fs/cgroup", e.namespace)}
	parent.set("0-1")
	follow := with(annotations(annotationSource, "parent"))
	image := filepath.Join(t.TempDir(), "image")
	c := e.run("c1", config{opts: follow}, "sleep", "1000")
	_, err := c.Task.Checkpoint(e.ctx, client.WithCheckpointImagePath(image))
	e.must(err, "checkpoint")
	c.kill()
	parent.set("2-3")
	restored := e.run("c2", config{opts: follow, task: []client.NewTaskOpts{client.WithRestoreImagePath(image)}},
		"sleep", "1000")
	if got := control(t, restored.cgroup(), "cpuset.cpus"); got != "2-3" {
		t.Errorf("cpuset.cpus after Start = %q, want 2-3", got)
	}
	wantRunsOn(t, "restored", restored.Task.Pid(), "2-3")
	parent.set("1")
	restored.wantCPUs("the source changed", "1")
	restored.kill()
	e.wantQuiet()
}
