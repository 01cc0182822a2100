// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"

	"sandbox.internal/shim/integration/harness"
)

func TestDelete_DoesNotWaitWhereNobodyHoldsTheOutput(t *testing.T) {
	e := newEnv(t)
	parent := e.run("c1", config{}, "sleep", "1000")
	var slowest time.Duration
	for i := range 10 {
		for _, terminal := range []bool{false, true} {
			x := parent.exec(fmt.Sprintf("x%d-%t", i, terminal), config{terminal: terminal}, nil, "echo", "hello")
			e.must(x.Start(e.ctx), "start")
			x.exit()
			began := time.Now()
			x.delete()
			slowest = max(slowest, time.Since(began))
		}
	}
	// Half of the time that children which hold the output are given.
	if slowest > time.Second {
		t.Errorf("the slowest Delete took %v, want less than 1s", slowest)
	}
	parent.kill()
}

// The client decides how long to wait for it.
func TestExec_WhatItLeavesBehindHasTheOutputUntilDelete(t *testing.T) {
	// left writes on a signal, and records the outcome in a file.
	const left = `trap '' PIPE; until [ -e /tmp/go ]; do usleep 10000; done; echo late; echo $? >/tmp/late
		until [ -e /tmp/deleted ]; do usleep 10000; done; echo later; echo $? >/tmp/later; exec sleep 1000`
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("x", config{}, nil, "sh", "-c", "("+left+") & echo first")
	e.must(x.Start(e.ctx), "start x")
	if got := x.exit(); got != 0 {
		t.Errorf("exit status of x = %d, want 0", got)
	}
	// Longer than the default of any client: Docker waits 2 s for such output.
	e.run("clock", config{}, "sleep", "3").wantExit(0)
	c.do("go", "touch", "/tmp/go")
	x.out.WaitFor(e, "late")
	c.wantSaid("late", "0")
	_, err := x.Delete(e.ctx) // it comes back, although what holds the output lives on
	e.must(err, "delete x")
	c.do("deleted", "touch", "/tmp/deleted")
	c.wantSaid("later", "1") // there is nothing to write to any more
	if got := x.out.String(); got != "first\nlate\n" {
		t.Errorf("output after Delete: %q, want first and late", got)
	}
	c.kill()
}

// A terminal is its process's, whoever else has it open.
func TestExec_ItsTerminalEndsWithIt(t *testing.T) {
	e := newEnv(t)
	c := e.run("c1", config{}, "sleep", "1000")
	x := c.exec("x", config{terminal: true}, nil, "sh", "-c", "trap '' HUP; setsid sleep 1000 & echo done")
	e.must(x.Start(e.ctx), "start x")
	if got := x.exit(); got != 0 {
		t.Errorf("exit status of x = %d, want 0", got)
	}
	ended := make(chan struct{})
	go func() { // ends with the output, by Delete at the latest
		defer close(ended)
		x.IO().Wait()
	}()
	harness.Eventually(e, "the end of the output", func() error {
		select {
		case <-ended:
			return nil
		default:
			return errors.New("not yet")
		}
	})
	if got := x.out.String(); got != "done\r\n" {
		t.Errorf("output = %q, want done", got)
	}
	x.delete()
	c.kill()
}

// do runs a command in the container, as an exec of that id.
func (t *task) do(id string, args ...string) {
	t.e.Helper()
	x := t.exec(id, config{}, nil, args...)
	t.e.must(x.Start(t.e.ctx), "start "+args[0])
	x.wantExit(0)
}

// wantSaid waits for a file in the container's /tmp that has one line.
func (t *task) wantSaid(name, want string) {
	t.e.Helper()
	t.do("said-"+name, "sh", "-c", fmt.Sprintf(`until [ -s /tmp/%[1]s ]; do usleep 10000; done
		read -r said </tmp/%[1]s; echo $said; test "$said" = %[2]s`, name, want))
}

// The readers of all outputs share the time that Delete gives them, also those of execs that nobody deleted.
func TestDelete_ManyStalledReadersDelayItNoMoreThanOne(t *testing.T) {
	harness.OursOnly(t, "a Delete well below the 10 s that CRI waits")
	e := newEnv(t)
	c := e.logged("c1", e.deaf, nil, "yes")
	wantBlocked(t, c)
	created := c.Process.(client.Task)
	spec, err := created.Spec(e.ctx)
	e.must(err, "spec")
	for i := range 3 {
		p, err := created.Exec(e.ctx, fmt.Sprintf("x%d", i), spec.Process, e.deaf)
		e.must(err, "exec")
		x := &process{Process: p, e: e}
		e.must(p.Start(e.ctx), "start exec")
		wantBlocked(t, x)
		defer x.closeIO()
	}
	e.must(c.Kill(e.ctx, syscall.SIGKILL), "kill")
	if got := c.exit(); got != 137 {
		t.Errorf("exit status = %d, want 137", got)
	}
	deleteInTime(t, c)
}
