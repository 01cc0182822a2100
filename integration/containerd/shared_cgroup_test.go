// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/oci"

	"sandbox.internal/shim/integration/harness"
)

// `docker run --cgroup-parent` puts a container below the cgroup of another.
func TestKill_AllLeavesAnotherContainerBelow(t *testing.T) {
	harness.OursOnly(t, "that a kill of all spares another container")
	parent := newEnv(t)
	for _, tt := range pidNamespaces {
		t.Run(tt.name+" pid namespace", func(t *testing.T) {
			e := parent.sub(t)
			id := "a-" + tt.name
			c := e.run(id, config{opts: tt.opts}, "sleep", "1000")
			x := c.exec(id+"-x", config{}, nil, "sleep", "1000")
			e.must(x.Start(e.ctx), "start exec")
			below := e.run(id+"-below", config{opts: with(oci.WithCgroup("/" + e.namespace + "/" + id + "/below"))},
				"sleep", "1000")
			e.must(c.process.Kill(e.ctx, syscall.SIGKILL, client.WithKillAll), "kill all")
			x.wantExit(137)
			if status := c.exit(); status != 137 {
				t.Errorf("exit status of %s = %d, want 137", id, status)
			}
			alive := below.exec(id+"-alive", config{}, nil, "true")
			e.must(alive.Start(e.ctx), "start an exec in the one below")
			alive.wantExit(0)
			below.kill()
			c.delete()
		})
	}
}
