// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func TestKill_ReachesTheProcessItIsSentTo(t *testing.T) {
	e := newEnv(t)
	const script = `trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.01; done`
	c := e.run("c1", config{}, "sh", "-c", script)
	c.out.WaitFor(t, "ready")
	x := c.exec("e1", config{}, nil, "sh", "-c", script)
	e.must(x.Start(e.ctx), "start e1")
	x.out.WaitFor(t, "ready")

	e.must(c.process.Kill(e.ctx, syscall.SIGUSR1), "USR1 to c1")
	c.out.WaitFor(t, "usr1")
	e.must(x.Kill(e.ctx, syscall.SIGTERM), "TERM to e1")
	x.wantExit(9)
	e.must(c.process.Kill(e.ctx, syscall.SIGTERM), "TERM to c1")
	c.wantExit(9)
	if got, want := x.out.String(), "ready\nterm\n"; got != want {
		t.Errorf("e1 wrote %q, want %q", got, want)
	}
	if got, want := c.out.String(), "ready\nusr1\nterm\n"; got != want {
		t.Errorf("c1 wrote %q, want %q", got, want)
	}
}

func TestKill_OfAnExitedProcessIsNotFound(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "true")
	c.exit()
	if err := c.process.Kill(e.ctx, syscall.SIGKILL); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("Kill = %v, want not found", err)
	}
	c.delete()
}

func TestKill_AllEndsWhatTheFirstProcessStarted(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sh", "-c", "sleep 1000 & sleep 1000 & echo ready; wait")
	c.out.WaitFor(t, "ready")
	e.must(c.process.Kill(e.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
	c.wantExit(137)
}

func TestExit_HostPIDNamespaceLeavesNoProcess(t *testing.T) {
	e := newEnv(t)
	host := config{opts: []oci.SpecOpts{oci.WithHostNamespace(specs.PIDNamespace)}}
	for _, tt := range []struct {
		name, id, script string
		want             uint32
		kill             bool
	}{
		{"killed", "c1", "sleep 1000 & sleep 1000 & echo ready; wait", 137, true},
		{"ended by itself", "c2", "sleep 1000 & echo ready; exit 6", 6, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := e.run(tt.id, host, "sh", "-c", tt.script)
			c.out.WaitFor(t, "ready")
			if tt.kill {
				e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill")
			}
			c.exit()
			// The exit is sent when all are dead, not when the container is deleted: CRI may wait long before it does
			// that.
			if left := harness.InCgroup("/" + e.namespace + "/" + tt.id); len(left) > 0 {
				t.Errorf("alive after the exit: %v", left)
			}
			c.delete()
			e.waitEvents(tt.id, fmt.Sprintf("exit %s %d | delete %s", tt.id, tt.want, tt.id))
		})
	}
}

func TestCreated_CanBeKilledAndDeletedWithoutStart(t *testing.T) {
	e := newEnv(t)
	c := e.create("c1", config{}, "true")
	c.kill()
	e.wantEvents("c1", "create c1 | exit c1 137 | delete c1")
	c = e.create("c2", config{}, "true")
	// The client refuses to ask for this, containerd does not.
	_, err := e.client.TaskService().Delete(e.ctx, &tasks.DeleteTaskRequest{ContainerID: "c2"})
	e.must(err, "delete c2")
	c.closeIO()
	e.waitEvents("c2", "delete c2")
}
