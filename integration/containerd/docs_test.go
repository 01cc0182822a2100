// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// runExamples runs the examples of a document as they are printed there, in a directory of their own, and compares what
// they print with what is printed there.
func (e *env) runExamples(name string) {
	e.Helper()
	_, err := e.client.ImageService().Create(e.ctx,
		images.Image{Name: "docker.io/library/busybox:latest", Target: e.image.Target()})
	if !errdefs.IsAlreadyExists(err) { // by -count
		e.must(err, "name the image as in the document")
	}
	blocks, err := section.Blocks(filepath.Join("../../docs", name))
	e.must(err, "read the document")
	dir := e.TempDir()
	var ran, compared int
	var printed string
	for _, b := range blocks {
		switch code := b.Text; b.Language {
		case "sh":
			cmd := exec.CommandContext(e.ctx, "sh", "-e", "-c", code)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(),
				"PATH="+e.containerd.Env.Path(),
				"CONTAINERD_ADDRESS="+e.containerd.Address, "CONTAINERD_NAMESPACE="+e.namespace,
				"CONTAINERD_SNAPSHOTTER="+e.snapshotter)
			cmd.Stderr = e.Output()
			out, err := cmd.Output()
			if err != nil {
				e.Fatalf("%s\n%v", code, err)
			}
			printed = string(out)
			ran++
		case "text":
			if printed != code {
				e.Errorf("the example prints %q, the document says %q", printed, code)
			}
			compared++
		}
	}
	if ran == 0 || compared == 0 {
		e.Errorf("%d examples ran, %d were compared", ran, compared)
	}
}

func TestDocs_ReadmeRuns(t *testing.T) {
	harness.OursOnly(t, "pods that it holds itself")
	newEnv(t).runExamples("../README.md")
}

func TestDocs_CPUSetRuns(t *testing.T) {
	needGuest(t) // its examples make cgroups that a machine may have
	newCPUSetEnv(t).runExamples("cpuset.md")
}

func TestDocs_ExecutorsRuns(t *testing.T) {
	harness.OursOnly(t, "the settings for executors")
	newEnv(t).runExamples("executors.md")
}
