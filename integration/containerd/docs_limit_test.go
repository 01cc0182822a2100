// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/opencontainers/runtime-spec/specs-go"
)

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

func TestDocs_ExecutorsJudgesInGo(t *testing.T) {
	source, err := os.ReadFile("docs_limit_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(source), ") ([]byte, error) {\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	document, err := os.ReadFile("../../docs/executors.md")
	if err != nil {
		t.Fatal(err)
	}
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
