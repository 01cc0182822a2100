// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandboxctl

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// fixes runs the command that sandboxctl says for its only leftover.
func (e *env) fixes(r report) {
	e.Helper()
	if len(r.Leftovers) != 1 {
		e.Fatalf("leftovers: %+v, want one", r.Leftovers)
	}
	cmd := exec.CommandContext(e.ctx, "sh", "-c", r.Leftovers[0].Fix)
	cmd.Env = append(os.Environ(), "PATH="+e.Env.Path())
	cmd.Stdout, cmd.Stderr = e.Output(), e.Output()
	if err := cmd.Run(); err != nil {
		e.Fatalf("%s: %v", r.Leftovers[0].Fix, err)
	}
}

// A container in a pod of the Sandbox API has a bundle without most files, and the shim of its pod.
func TestDoctorLeftovers_APodThatLivesHasNone(t *testing.T) {
	e := newPatient(t, nil)
	s, err := e.client.NewSandbox(e.ctx, "box", client.WithSandboxRuntime(harness.Ours, nil),
		client.WithSandboxSpec(&specs.Spec{Linux: &specs.Linux{}}))
	e.must(err)
	t.Cleanup(func() { e.must(s.Shutdown(e.ctx)) })
	e.must(s.Start(e.ctx))
	c1 := e.run("c1", harness.Ours, nil, client.WithSandbox("box"))
	e.wantNothingLeft(e.examine(-1))
	e.must(e.Kill()) // nobody says what is known, and the shim lives
	if r := e.examine(2); len(r.Leftovers) > 0 {
		t.Errorf("leftovers: %+v, want none", r.Leftovers)
	}
	e.must(e.Start(e.ctx))
	e.exec(c1, "e1", true, "true")
}

// A shim whose bundle somebody removed, behind a containerd that was started anew, and then its state directory.
func TestDoctorLeftovers_AShimWhoseBundleIsGone(t *testing.T) {
	e := newPatient(t, nil)
	e.run("lost", harness.Ours, nil)
	shim := e.shim("lost")
	e.must(e.Kill())
	bundle := filepath.Join(e.bundles(), "lost")
	e.must(unix.Unmount(filepath.Join(bundle, "rootfs"), unix.MNT_DETACH))
	e.must(os.RemoveAll(bundle))
	e.must(e.Start(e.ctx))
	e.must(e.client.ContainerService().Delete(e.ctx, "lost")) // what containerd knows is no leftover
	r := e.examine(2)
	e.want(r, "leftover-shims", "failure", "it has 1 processes of containers")
	e.fixes(r)
	harness.Eventually(t, "end of the shim", func() error {
		if harness.Alive(shim) {
			return errors.New("it lives")
		}
		return nil
	})
	if r := e.examine(-1); len(r.Leftovers) > 0 {
		e.fixes(r)
	}
	harness.Eventually(t, "nothing is left", func() error {
		if r := e.examine(-1); len(r.Leftovers) > 0 {
			return fmt.Errorf("%+v", r.Leftovers)
		}
		return nil
	})
	e.must(os.RemoveAll(filepath.Join(e.Dir, "root/io.containerd.runtime.v2.task", e.namespace, "lost")))
}
