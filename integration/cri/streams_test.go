// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sandbox.internal/shim/integration/harness"
)

// stream connects the streams to what answered with address, until the remote side ends.
func (e *env) stream(address string, streams remotecommand.StreamOptions) error {
	e.Helper()
	where, err := url.Parse(address)
	e.must(err, "address of the streams")
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, where)
	e.must(err, "prepare the streams")
	return executor.StreamWithContext(e.ctx, streams)
}

// openExec asks for the address of a command in the container.
func (c *container) openExec(tty bool, argv ...string) string {
	c.pod.e.Helper()
	r, err := c.pod.e.daemon.Runtime.Exec(c.pod.e.ctx, &runtimeapi.ExecRequest{
		ContainerId: c.id, Cmd: argv, Tty: tty, Stdin: true, Stdout: true, Stderr: !tty,
	})
	c.pod.e.must(err, "exec")
	return r.GetUrl()
}

// containerd waits for that output as long as its operator says, not as long as the shim likes to.
func TestExecSync_OutputThatAnotherProcessHoldsIsNotAtItsEnd(t *testing.T) {
	eachContainer(t, func(e *env, c *container) {
		before := c.usage()
		r, err := c.tryExec(0, "sh", "-c", "sleep 4711 & echo begun")
		if err == nil || !strings.Contains(err.Error(), "failed to drain exec process") {
			e.Errorf("exec = %v, %v, want failed to drain exec process", r, err)
		}
		if !slices.ContainsFunc(harness.InCgroup(e.cgroup),
			func(proc harness.Proc) bool { return strings.Contains(proc.String(), "4711") }) {
			e.Error("what held it is gone")
		}
		harness.CheckUsage(e, e.shim(c.pod), before, 8)
	})
}

// sizeQueue are the sizes of a terminal, one after the other.
type sizeQueue chan *remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize { return <-q }

// Nobody deletes such execs.
func TestExecSync_ContainerdKilledMeanwhileCostsNoWakeups(t *testing.T) {
	harness.OursOnly(t, "an idle shim that does not wake up")
	eachWayAlone(t, func(e *env) {
		const execs = 10
		p := e.pod("p")
		dir := e.volume()
		c := p.run("c", forever, mounted(dir, "/gate"))
		before := c.usage()
		shim := e.shim(p)
		var calls sync.WaitGroup
		for i := range execs {
			calls.Go(func() {
				_, err := c.tryExec(0, "sh", "-c", fmt.Sprintf("echo begun >/gate/begun%d\n"+
					"until [ -e /gate/open ]; do usleep 10000; done; echo unread; echo unread >&2\n"+
					"echo done >/gate/done%[1]d", i))
				if err == nil {
					e.Error("exec = nil, although containerd was killed")
				}
			})
		}
		wantFiles(e, filepath.Join(dir, "begun*"), execs)
		outputs, err := filepath.Glob(filepath.Join(e.daemon.State, "io.containerd.grpc.v1.cri", "containers", c.id,
			"io", "*", "*-std*"))
		e.must(err, "fifos")
		// Those of init are not counted.
		outputs = slices.DeleteFunc(outputs,
			func(name string) bool { return strings.HasPrefix(filepath.Base(name), c.id) })
		e.must(e.daemon.Kill(), "kill containerd")
		calls.Wait()
		e.must(os.WriteFile(filepath.Join(dir, "open"), nil, 0o644), "let the execs end")
		wantFiles(e, filepath.Join(dir, "done*"), execs)

		// The shim tries to send the exits. Looking 20 times a second at each output would make 1200.
		harness.CheckNearlyAsleep(e, shim, 2*execs)
		outputs = read(e, outputs)
		if len(outputs) != 2*execs {
			e.Errorf("unread outputs: %q, want those of %d execs", outputs, execs)
		}
		harness.CheckUsage(e, shim, before, 2*execs+8) // a thread waited for a reader of each
		e.must(e.daemon.Start(e.ctx), "start containerd again")
		c.wantExec("still here", "echo", "still here")
	})
}

func wantFiles(e *env, pattern string, n int) {
	e.Helper()
	harness.Eventually(e, fmt.Sprintf("%d files %s", n, filepath.Base(pattern)), func() error {
		names, err := filepath.Glob(pattern)
		if err == nil && len(names) != n {
			err = fmt.Errorf("%d files", len(names))
		}
		return err
	})
}

// read comes to read the fifos that are named, to the end, and returns those with what the execs wrote.
func read(e *env, fifos []string) (unread []string) {
	e.Helper()
	for _, name := range fifos {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		e.must(err, "open an output")
		var text strings.Builder
		_, err = f.WriteTo(&text)
		e.must(err, "read "+name)
		e.must(f.Close(), "close "+name)
		if text.String() == "unread\n" {
			unread = append(unread, name)
		}
	}
	return unread
}

// wantGone waits for the end of all processes of the test that have a word in their arguments.
func (e *env) wantGone(word string) {
	e.Helper()
	harness.Eventually(e, "no process "+word, func() error {
		for _, proc := range harness.InCgroup(e.cgroup) {
			if strings.Contains(proc.String(), word) {
				return errors.New(proc.String())
			}
		}
		return nil
	})
}

// What the probe has started and did not end would hold its output, too. The runc shim kills the first process alone.
func TestExecSync_TimeoutEndsItAndLeavesNothing(t *testing.T) {
	script := "sleep 4711 & (sleep 4712 &); sleep 4713; true"
	if harness.Runtime() != harness.Ours {
		script = "exec sleep 4711"
	}
	eachContainer(t, func(e *env, c *container) {
		before := c.usage()
		for range 3 {
			if _, err := c.tryExec(1, "sh", "-c", script); status.Code(err) != codes.DeadlineExceeded {
				e.Errorf("exec with a limit = %v, want DeadlineExceeded", err)
			}
		}
		e.wantGone("sleep 471")
		harness.CheckUsage(e, e.shim(c.pod), before, 8)
		c.wantExec("still here", "echo", "still here")
	})
}

func TestExec_CarriesItsStreams(t *testing.T) {
	eachContainer(t, func(e *env, c *container) {
		var out, err harness.Buffer
		failure := e.stream(c.openExec(false, "sh", "-c", "cat; echo done >&2; exit 5"), remotecommand.StreamOptions{
			Stdin: strings.NewReader("some words"), Stdout: &out, Stderr: &err,
		})
		if code, ok := errors.AsType[exec.CodeExitError](failure); !ok || code.Code != 5 || out.String() != "some words" ||
			err.String() != "done\n" {
			e.Errorf("exec = %q, %q, %v, want some words, done and exit code 5", out.String(), err.String(), failure)
		}

		// With a terminal, containerd closes the output as soon as the input has come to its end.
		began := time.Now()
		e.must(e.stream(c.openExec(true, "sh", "-c", "usleep 200000; echo unread"),
			remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard, Tty: true}), "exec")
		if took := time.Since(began); took > harness.Slow(3*time.Second) { // a reader that is there has 4 s
			e.Errorf("an exec whose output nobody reads took %v", took)
		}
	})
}

func TestExec_HasATerminalOfTheSizeThatIsAsked(t *testing.T) {
	eachContainer(t, func(e *env, c *container) {
		keyboard, stdin := io.Pipe()
		var out harness.Buffer
		done := make(chan error, 1)
		sizes := make(sizeQueue, 1)
		sizes <- &remotecommand.TerminalSize{Width: 77, Height: 33}
		address := c.openExec(true, "sh", "-c", `test -t 2 && echo ready >&2
			until [ "$(stty size)" = "44 99" ]; do usleep 10000; done; echo sized; read -r word; echo got $word; exit 3`)
		go func() {
			done <- e.stream(address,
				remotecommand.StreamOptions{Stdin: keyboard, Stdout: &out, Tty: true, TerminalSizeQueue: sizes})
		}()
		out.WaitFor(e, "ready")
		sizes <- &remotecommand.TerminalSize{Width: 99, Height: 44}
		close(sizes)
		out.WaitFor(e, "sized")
		fmt.Fprint(stdin, "word\n")
		code, ok := errors.AsType[exec.CodeExitError](<-done)
		if !ok || code.Code != 3 || !strings.Contains(out.String(), "got word\r\n") {
			e.Errorf("exec wrote %q and ended with %v, want got word and 3", out.String(), code)
		}
	})
}
