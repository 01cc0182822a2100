// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/integration/harness"
)

func TestExec_RunsInTheContainerAndReportsItsExit(t *testing.T) { testExec(newEnv(t)) }

func testExec(e *env) {
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline; echo err >&2; exit 3")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(3)
	if got, want := x.out.String(), "sleep 1000 "; got != want {
		e.Errorf("stdout = %q, want %q", got, want)
	}
	if got, want := x.err.String(), "err\n"; got != want {
		e.Errorf("stderr = %q, want %q", got, want)
	}
	c.kill()
	e.wantEvents("c1", "create c1 | start c1 | exec-added e1 | exec-start e1 | exit e1 3 | exit c1 137 | delete c1")
}

func TestExec_ReadsItsInputUntilTheEnd(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	// More than a pipe holds, so that reading and writing must go on side by side.
	text := strings.Repeat("0123456789abcdef\n", 1<<14)
	x := c.exec("e1", config{stdin: strings.NewReader(text)}, nil, "cat")
	e.must(x.Start(e.ctx), "start e1")
	e.must(x.CloseIO(e.ctx, withStdin), "close stdin of e1")
	x.wantExit(0)
	if got := x.out.String(); got != text {
		t.Errorf("stdout has %d bytes, want the %d that were put in", len(got), len(text))
	}
	c.kill()
}

func TestExec_HasItsUserDirectoryAndEnvironment(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, func(p *specs.Process) {
		p.User = specs.User{UID: 1000, GID: 1000}
		p.Cwd = "/tmp"
		p.Env = append(p.Env, "GREETING=hello")
	}, "sh", "-c", "id -u; id -g; pwd; echo $GREETING")
	e.must(x.Start(e.ctx), "start e1")
	x.wantExit(0)
	if got, want := x.out.String(), "1000\n1000\n/tmp\nhello\n"; got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	c.kill()
}

func TestExec_ThatCannotStartNamesTheReason(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	for _, tt := range []struct {
		name   string
		change func(*specs.Process)
		want   string
	}{
		{"a program that does not exist", func(p *specs.Process) { p.Args = []string{"/no/such/program"} }, "/no/such/program"},
		{"a program that is not in PATH", func(p *specs.Process) { p.Args = []string{"no-such-program"} }, "no-such-program"},
		{"a directory that is a file", func(p *specs.Process) { p.Cwd = "/etc/passwd" }, "/etc/passwd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := fmt.Sprintf("x%d", len(tt.name))
			x := c.exec(id, config{}, tt.change, "true")
			err := x.Start(e.ctx)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start = %v, want an error that names %q", err, tt.want)
			}
			if _, err := x.Delete(e.ctx); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("Delete after a failed Start = %v", err)
			}
		})
	}
	x := c.exec("after", config{}, nil, "true")
	e.must(x.Start(e.ctx), "start after")
	x.wantExit(0)
	c.kill()
	e.waitEvents("c1", "exec-added after | exec-start after | exit after | exit c1 137")
	text := e.events.Text("c1")
	if strings.Count(text, "exec-start") != 1 || strings.Count(text, "exit x") != 0 {
		t.Errorf("events = %q, want no start and no exit of an exec that did not start", text)
	}
}

func TestExec_NeverStartedCanBeDeleted(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "true")
	if err := x.Kill(e.ctx, syscall.SIGKILL); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("Kill of an exec that was not started = %v, want failed precondition", err)
	}
	if status, err := x.Delete(e.ctx); err != nil || status.ExitCode() != 0 {
		t.Errorf("Delete = %v, %v, want status 0", status, err)
	}
	if _, err := c.LoadProcess(e.ctx, "e1", nil); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("LoadProcess after Delete = %v, want not found", err)
	}
	c.kill()
}

func TestExec_HundredAtOnceReportTheirOwnStatus(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	var all sync.WaitGroup
	for i := range 100 {
		x := c.exec(fmt.Sprintf("e%d", i), config{}, nil, "sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i))
		all.Go(func() {
			if err := x.Start(e.ctx); err != nil {
				t.Errorf("start e%d: %v", i, err)
				return
			}
			status := <-x.exited
			if got := status.ExitCode(); got != uint32(i) || status.Error() != nil {
				t.Errorf("exit status of e%d = %d, %v, want %d", i, got, status.Error(), i)
			}
			// The client's Delete closes a fifo whose open(2) has returned, but whose goroutine has not run yet.
			x.IO().Wait()
			if _, err := x.Delete(e.ctx); err != nil {
				t.Errorf("delete e%d: %v", i, err)
			}
			if got, want := x.out.String(), fmt.Sprintln(i); got != want {
				t.Errorf("stdout of e%d = %q, want %q", i, got, want)
			}
		})
	}
	all.Wait()
	c.kill()
	e.waitEvents("c1", "exit c1 137")
	text := e.events.Text("c1")
	for i := range 100 {
		for _, word := range []string{"exec-added e%d |", "exec-start e%d |"} {
			if want := fmt.Sprintf(word, i); strings.Count(text, want) != 1 {
				t.Errorf("events have %q %d times, want once", want, strings.Count(text, want))
			}
		}
	}
	if got := strings.Count(text, "exit e"); got != 100 {
		t.Errorf("events have %d exits of execs, want 100", got)
	}
}

func TestExec_DiesWithTheContainerAndReportsBeforeIt(t *testing.T) {
	e := newEnv(t)
	// In a pid namespace of its own the kernel lets the first process end last. In the host's it is for the shim to
	// kill the others, and to tell their exits first.
	for id, opts := range map[string][]oci.SpecOpts{"own": nil, "host": {oci.WithHostNamespace(specs.PIDNamespace)}} {
		c := e.run(id, config{opts: opts}, "sleep", "1000")
		// So many that the container's exit is not the last one by chance.
		const n = 20
		var execs []*process
		for i := range n {
			x := c.exec(fmt.Sprintf("%s%d", id, i), config{}, nil, "sleep", "1000")
			e.must(x.Start(e.ctx), "start "+x.ID())
			execs = append(execs, x)
		}
		e.must(c.process.Kill(e.ctx, syscall.SIGKILL), "kill "+id)
		for _, x := range execs {
			x.wantExit(137)
		}
		c.wantExit(137)
		last := "exit " + id + " 137"
		e.waitEvents(id, last+" | delete "+id)
		before, _, _ := strings.Cut(e.events.Text(id), last)
		if got := strings.Count(before, "| exit "+id); got != n && harness.Runtime() == harness.Ours {
			t.Errorf("%d exits of execs before the container's, want %d: %s", got, n, e.events.Text(id))
		}
	}
}

// containerd#13377: the shim waited for the output as long as CRI waits for the whole Delete.
func TestDelete_WaitsBrieflyForOutputThatAGrandchildHolds(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits")
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("e1", config{}, nil, "sh", "-c", "sleep 1000 & echo done")
	e.must(x.Start(e.ctx), "start e1")
	if got := x.exit(); got != 0 {
		t.Errorf("exit status of e1 = %d, want 0", got)
	}
	x.out.WaitFor(t, "done")
	began := time.Now()
	_, err := x.Delete(e.ctx) // without the client's own wait for the end of the output
	e.must(err, "delete e1")
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("Delete took %v, want less than 8s", took)
	}
	if got := x.out.String(); got != "done\n" {
		t.Errorf("stdout = %q, want %q", got, "done\n")
	}
	c.kill()
}
