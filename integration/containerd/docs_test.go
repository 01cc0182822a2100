// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
	"sandbox.internal/shim/integration/section"
)

// script runs a script for containerd, as its user would, and returns what it prints.
func (e *env) script(dir, code string) (string, error) {
	cmd := exec.CommandContext(e.ctx, "sh", "-e", "-c", code)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+e.containerd.Env.Path(), "CONTAINERD_ADDRESS="+e.containerd.Address,
		"CONTAINERD_NAMESPACE="+e.namespace, "CONTAINERD_SNAPSHOTTER="+e.snapshotter)
	cmd.Stderr = e.Output() // warnings of containerd's are there as well
	out, err := cmd.Output()
	return string(out), err
}

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
			printed, err = e.script(dir, code)
			if err != nil {
				e.Fatalf("%s\n%v", code, err)
			}
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

// judgeAsDocumented is the example of docs/executors.md: a program, as that of spec, with limits of its own. It returns
// the verdict.
func judgeAsDocumented(
	ctx context.Context, task client.Task, spec *specs.Process, streams cio.Creator, verdicts string,
) ([]byte, error) {
	spec.Env = append(spec.Env, "SANDBOX_LIMIT_CPU_TIME=200ms", "SANDBOX_LIMIT_MEMORY=32Mi")
	process, err := task.Exec(ctx, "e1", spec, streams)
	if err != nil {
		return nil, err
	}
	exited, err := process.Wait(ctx)
	if err != nil {
		return nil, err
	}
	if err := process.Start(ctx); err != nil {
		return nil, err
	}
	<-exited
	if _, err := process.Delete(ctx); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(verdicts, "judge:e1.json"))
}

func TestDocs_IdleRuns(t *testing.T) {
	harness.OursOnly(t, "containers that sleep")
	newEnv(t).runExamples("idle.md")
}

func TestDocs_ExecutorsJudgesInGo(t *testing.T) {
	source, err := os.ReadFile("docs_test.go")
	harness.Must(t, err)
	_, body, _ := strings.Cut(string(source), ") ([]byte, error) {\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	document, err := os.ReadFile("../../docs/executors.md")
	harness.Must(t, err)
	want := "```go\n" + strings.TrimPrefix(strings.ReplaceAll(body, "\n\t", "\n"), "\t") + "\n```\n"
	if !strings.Contains(string(document), want) {
		t.Errorf("docs/executors.md: want this in it, which is what the test runs:\n%s", want)
	}

	j := newJudge(t)
	c := j.run("judge", config{opts: with(j.limited("wall-time=10s,cpu-time=2s,memory=64Mi"))}, "sleep", "1000")
	spec, err := c.Task.Spec(j.ctx)
	j.must(err, "configuration")
	spec.Process.Args = []string{"sh", "-c", "echo hello; " + spin}
	var out bytes.Buffer
	streams := cio.NewCreator(cio.WithStreams(nil, &out, nil), cio.WithFIFODir(j.containerd.Fifos))
	text, err := judgeAsDocumented(j.ctx, c.Task, spec.Process, streams, j.dir)
	j.must(err, "judge")
	var v verdict
	j.must(json.Unmarshal(text, &v), "verdict")
	if v.Limit != "cpu-time" || v.Status != 137 || out.String() != "hello\n" {
		t.Errorf("verdict %s, output %q", text, out.String())
	}
	c.kill()
}

// The example of docs/pods.md, as it is printed there.
func TestSandbox_ByCtr(t *testing.T) {
	harness.OursOnly(t, "the Sandbox API")
	e := newEnv(t)
	bundles := filepath.Join(shared.State, "io.containerd.sandbox.controller.v1.shim", e.namespace)
	t.Cleanup(func() {
		(harness.Scope{Namespace: e.namespace, MountsIn: bundles, Dirs: []string{bundles}}).Check(t)
	})
	code, err := section.Block("../../docs/pods.md", "sh", "ctr sandbox run")
	e.must(err, "find the example")
	run, remove, ok := strings.Cut(code, "ctr sandbox rm")
	if !ok {
		t.Fatalf("docs/pods.md has no example that removes a sandbox: %q", code)
	}
	ctr := func(script string) string {
		t.Helper()
		out, err := e.script(t.TempDir(), script)
		e.must(err, script)
		return out
	}
	out := ctr(run)
	if want := "web\n" + harness.Ours + "\n"; out != want {
		t.Errorf("%s\nprinted %q, want %q, as docs/pods.md says", run, out, want)
	}
	if list := ctr("ctr sandbox ls"); !slices.ContainsFunc(strings.Split(list, "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 1 && f[0] == "web" && slices.Contains(f, harness.Ours)
	}) {
		t.Errorf("ctr sandbox ls printed %q, want web with its runtime in it", list)
	}
	shim := e.shim("web")
	if got := namespaceOf(t, shim, "uts"); got == namespaceOf(t, os.Getpid(), "uts") {
		t.Error("the host name of the sandbox is that of the machine")
	}
	ctr("ctr sandbox rm" + remove)
	if out := ctr("ctr sandbox ls"); strings.Contains(out, "web") {
		t.Errorf("after rm the list is %q", out)
	}
}

func namespaceOf(t *testing.T, pid int, kind string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	harness.Must(t, err)
	return link
}
