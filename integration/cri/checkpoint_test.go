// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

func TestCheckpoint_ContainerRunsOn(t *testing.T) {
	// criu 3.17, which Debian has, knows no newer kernel than the guest's.
	if _, err := os.Stat("/run/guest"); err != nil {
		harness.Lacking(t, "guest", "a kernel that Debian's criu knows (make test-v2)")
	}
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", []string{"sh", "-c", "echo ready; while :; do sleep 1; done"})
		c.wantLog("ready\n")
		location := filepath.Join(e.dir, "checkpoint.tar")
		_, err := e.daemon.Runtime.CheckpointContainer(e.ctx,
			&runtimeapi.CheckpointContainerRequest{ContainerId: c.id, Location: location})
		e.must(err, "checkpoint")
		file, err := os.Open(location)
		e.must(err, "open the checkpoint")
		defer func() { _ = file.Close() }() // it was read
		var names []string
		for archive := tar.NewReader(file); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			e.must(err, "read the checkpoint")
			names = append(names, filepath.Clean(h.Name))
		}
		for _, want := range []string{
			"checkpoint/inventory.img", "config.dump", "spec.dump", "status.dump",
			"container.log",
		} {
			if !slices.Contains(names, want) {
				e.Errorf("the checkpoint lacks %s: %q", want, names)
			}
		}
		c.wantExec("runs on", "echo", "runs on")
		p.remove()
	})
}
