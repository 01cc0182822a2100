// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"

	"sandbox.internal/shim/integration/harness"
)

func TestRun_ReportsItsExitAndLeavesNothing(t *testing.T) { testRun(newEnv(t)) }

func testRun(e *env) {
	c := e.run("c1", config{}, "sh", "-c", "echo out; echo err >&2; exit 7")
	c.wantExit(7)
	if got := c.out.String(); got != "out\n" {
		e.Errorf("stdout = %q, want %q", got, "out\n")
	}
	if got := c.err.String(); got != "err\n" {
		e.Errorf("stderr = %q, want %q", got, "err\n")
	}
	e.wantEvents("c1", "create c1 | start c1 | exit c1 7 | delete c1")
}

func TestRun_AbsentProgramIsNamedAndLeavesNothing(t *testing.T) {
	e := newEnv(t)
	c, err := e.tryCreate("c1", config{}, "/no/such/program")
	if err == nil { // a runtime may find out when it starts the program
		err = c.process.Start(e.ctx)
		defer c.delete()
	}
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error = %v, want one that names the program", err)
	}
}

func TestCreate_ExistingTaskIsNotMadeAgain(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	if _, err := c.container.NewTask(e.ctx, e.streams(config{}, nil, nil)); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("second NewTask = %v, want already exists", err)
	}
	x := c.exec("e1", config{}, nil, "sleep", "1000")
	e.must(x.Start(e.ctx), "start e1")
	if _, err := c.tryExec("e1", config{}, nil, "true"); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("second exec e1 = %v, want already exists", err)
	}
	e.must(x.Kill(e.ctx, 9), "kill e1")
	x.wantExit(137)
	c.kill()
}

func TestStreams_StdinAndItsEndReachTheContainer(t *testing.T) { testInput(newEnv(t)) }

func testInput(e *env) {
	const text = "line one\nline two\n"
	c := e.create("c1", config{stdin: strings.NewReader(text)}, "cat")
	e.must(c.process.Start(e.ctx), "start")
	e.must(c.process.CloseIO(e.ctx, withStdin), "close stdin")
	c.wantExit(0)
	if got := c.out.String(); got != text {
		e.Errorf("stdout = %q, want what was put in, %q", got, text)
	}
}

func TestStreams_NoByteBeforeTheExitIsLost(t *testing.T) {
	e := newEnv(t)
	const n = 5000000
	c := e.run("c1", config{}, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo END >&2", n))
	c.wantExit(0)
	if got := len(c.out.String()); got != n {
		t.Errorf("stdout has %d bytes, want %d", got, n)
	}
	if got := c.err.String(); got != "END\n" {
		t.Errorf("stderr = %q, want %q", got, "END\n")
	}
}

func TestStreams_OutputGoesToAFile(t *testing.T) {
	e := newEnv(t)
	name := filepath.Join(t.TempDir(), "log")
	container, err := e.client.NewContainer(e.ctx, "c1", append(e.plain("c1"),
		client.WithNewSpec(oci.WithImageConfig(e.image), oci.WithProcessArgs("sh", "-c", "echo out; echo err >&2")))...)
	e.must(err, "container")
	e.Cleanup(func() { e.remove(container) })
	created, err := container.NewTask(e.ctx, cio.LogFile(name))
	e.must(err, "task")
	c := &process{Process: created, e: e, err: &harness.Buffer{}}
	c.exited, err = created.Wait(e.ctx)
	e.must(err, "wait")
	e.must(created.Start(e.ctx), "start")
	c.wantExit(0)
	text, err := os.ReadFile(name)
	e.must(err, "log file")
	// Two pipes end in the file, so the lines may come in either order.
	if got := string(text); got != "out\nerr\n" && got != "err\nout\n" {
		t.Errorf("log file has %q, want both lines", got)
	}
}
