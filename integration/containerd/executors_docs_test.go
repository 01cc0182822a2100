// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"sandbox.internal/shim/integration/harness"
)

// The examples of docs/executors.md run as they are printed there, and print what is printed there.
func TestExecutorsDocumentationRuns(t *testing.T) {
	harness.OursOnly(t, "docs/executors.md")
	e := newEnv(t)
	_, err := e.client.ImageService().Create(e.ctx, images.Image{Name: "docker.io/library/busybox:latest", Target: e.image.Target()})
	e.must(err, "name the image as in the document")
	e.Cleanup(func() { // an example that fails leaves its container
		left, err := e.client.Containers(e.ctx)
		e.must(err, "list containers")
		for _, container := range left {
			e.remove(container)
		}
	})
	text, err := os.ReadFile("../../docs/executors.md")
	e.must(err, "read the document")
	var ran, compared int
	var printed string
	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		switch language, code := b[1], b[2]; language {
		case "sh":
			cmd := exec.CommandContext(e.ctx, "sh", "-e", "-c", code)
			cmd.Env = append(os.Environ(),
				"PATH="+e.containerd.Env.Path(),
				"CONTAINERD_ADDRESS="+e.containerd.Address, "CONTAINERD_NAMESPACE="+e.namespace, "CONTAINERD_SNAPSHOTTER="+e.snapshotter)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s\n%v", code, err)
			}
			printed = string(out)
			ran++
		case "text":
			if printed != code {
				t.Errorf("the example prints %q, the document says %q", printed, code)
			}
			compared++
		}
	}
	if ran == 0 || compared == 0 {
		t.Errorf("%d examples ran, %d were compared", ran, compared)
	}
}
