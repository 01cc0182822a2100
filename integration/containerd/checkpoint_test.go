// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

func TestCheckpoint_WithoutCRIUTheErrorNamesIt(t *testing.T) {
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
