// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cri_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
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

func TestExecSync_ReturnsOutputAndExitCode(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		r, err := c.tryExec(10, "sh", "-c", "echo out; echo err >&2; exit 7")
		e.must(err, "exec")
		if got := fmt.Sprintf("%q %q %d", r.GetStdout(), r.GetStderr(), r.GetExitCode()); got != `"out\n" "err\n" 7` {
			e.Errorf("exec = %s, want out, err and 7", got)
		}
		const size = 3 << 20 // many times what a pipe holds
		if got := len(c.exec("sh", "-c", fmt.Sprintf("head -c %d /dev/zero", size))); got != size {
			e.Errorf("exec wrote %d bytes, want %d", got, size)
		}
		p.remove()
	})
}

func TestExecSync_TimeoutEndsItAndLeavesNothing(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		before := c.usage()
		for range 3 {
			if _, err := c.tryExec(1, "sleep", "4711"); status.Code(err) != codes.DeadlineExceeded {
				e.Errorf("exec with a limit = %v, want DeadlineExceeded", err)
			}
		}
		harness.Eventually(e, "no process of the execs", func() error {
			for _, proc := range harness.InCgroup(e.cgroup) {
				if strings.Contains(proc.String(), "4711") {
					return errors.New(proc.String())
				}
			}
			return nil
		})
		harness.CheckUsage(e, e.shim(p), before, 8)
		c.wantExec("still here", "echo", "still here")
		p.remove()
	})
}

// What the probe has started and did not end would hold its output, too.
func TestExecSync_TimeoutEndsWhatItHasStarted(t *testing.T) {
	harness.OursOnly(t, "the runc shim kills the first process alone")
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		for range 3 {
			_, err := c.tryExec(1, "sh", "-c", "sleep 4711 & (sleep 4712 &); sleep 4713; true")
			if status.Code(err) != codes.DeadlineExceeded {
				e.Errorf("exec with a limit = %v, want DeadlineExceeded", err)
			}
		}
		harness.Eventually(e, "no process of the execs", func() error {
			for _, proc := range harness.InCgroup(e.cgroup) {
				if strings.Contains(proc.String(), "471") {
					return errors.New(proc.String())
				}
			}
			return nil
		})
		p.remove()
	})
}

// containerd waits for that output as long as its operator says, not as long as the shim likes to.
func TestExecSync_OutputThatAnotherProcessHoldsIsNotAtItsEnd(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		before := c.usage()
		r, err := c.tryExec(0, "sh", "-c", "sleep 4711 & echo begun")
		if err == nil || !strings.Contains(err.Error(), "failed to drain exec process") {
			e.Errorf("exec = %v, %v, want failed to drain exec process", r, err)
		}
		if !slices.ContainsFunc(harness.InCgroup(e.cgroup),
			func(proc harness.Proc) bool { return strings.Contains(proc.String(), "4711") }) {
			e.Error("what held it is gone")
		}
		harness.CheckUsage(e, e.shim(p), before, 8)
		p.remove()
	})
}

func TestExec_CarriesItsStreams(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		var out, err harness.Buffer
		failure := e.stream(c.openExec(false, "sh", "-c", "cat; echo done >&2; exit 5"), remotecommand.StreamOptions{
			Stdin: strings.NewReader("some words"), Stdout: &out, Stderr: &err,
		})
		code, ok := errors.AsType[exec.CodeExitError](failure)
		if !ok || code.Code != 5 || out.String() != "some words" || err.String() != "done\n" {
			e.Errorf("exec = %q, %q, %v, want some words, done and exit code 5", out.String(), err.String(), failure)
		}
		p.remove()
	})
}

func TestExec_HasATerminalOfTheSizeThatIsAsked(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		keyboard, stdin := io.Pipe()
		var out harness.Buffer
		done := make(chan error, 1)
		sizes := make(sizeQueue, 1)
		sizes <- &remotecommand.TerminalSize{Width: 77, Height: 33}
		address := c.openExec(true, "sh", "-c",
			`echo ready; until [ "$(stty size)" = "44 99" ]; do usleep 10000; done; echo sized
			read -r word; echo got $word; exit 3`)
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
		p.remove()
	})
}

func TestExec_StderrIsItsTerminal(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", forever)
		keyboard, stdin := io.Pipe() // stays open: at the end of the input containerd closes the output
		defer func() { _ = stdin.Close() }()
		var out harness.Buffer
		address := c.openExec(true, "sh", "-c", `test -t 2 && echo a terminal; echo oops >&2; exit 3`)
		failure := e.stream(address, remotecommand.StreamOptions{Stdin: keyboard, Stdout: &out, Tty: true})
		code, ok := errors.AsType[exec.CodeExitError](failure)
		if want := "a terminal\r\noops\r\n"; !ok || code.Code != 3 || out.String() != want {
			e.Errorf("exec wrote %q and ended with %v, want %q and exit code 3", out.String(), failure, want)
		}
		p.remove()
	})
}

func TestExec_WhoseOutputNobodyReadsEndsAtOnce(t *testing.T) {
	eachWay(t, func(e *env) {
		c := e.pod("p").run("c", forever)
		// With a terminal, containerd closes the output as soon as the input has come to its end.
		address := c.openExec(true, "sh", "-c", "usleep 200000; echo unread")
		began := time.Now()
		if err := e.stream(address,
			remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard, Tty: true}); err != nil {
			e.Errorf("exec = %v, want nil", err)
		}
		if took := time.Since(began); took > harness.Slow(3*time.Second) { // a reader that is there has 4 s
			e.Errorf("it took %v", took)
		}
	})
}

// sizeQueue are the sizes of a terminal, one after the other.
type sizeQueue chan *remotecommand.TerminalSize

func (q sizeQueue) Next() *remotecommand.TerminalSize { return <-q }

func TestAttach_ReachesTheContainersOwnStreams(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		const script = "while :; do echo tick; usleep 50000; done & " +
			"read -r word; echo got $word; read -r word; echo then $word; wait"
		c := p.run("c", []string{"sh", "-c", script},
			func(config *runtimeapi.ContainerConfig) { config.Stdin = true })
		// It attaches twice.
		for _, say := range []struct{ word, want string }{{"one", "got one\n"}, {"two", "then two\n"}} {
			r, err := e.daemon.Runtime.Attach(e.ctx,
				&runtimeapi.AttachRequest{ContainerId: c.id, Stdin: true, Stdout: true, Stderr: true})
			e.must(err, "attach")
			keyboard, stdin := io.Pipe()
			ctx, cancel := context.WithCancel(e.ctx)
			attached := *e
			attached.ctx = ctx
			var out harness.Buffer
			done := make(chan error, 1)
			go func() {
				done <- attached.stream(r.GetUrl(),
					remotecommand.StreamOptions{Stdin: keyboard, Stdout: &out, Stderr: io.Discard})
			}()
			out.WaitFor(e, "tick") // containerd connects stdin first, and the answer could come before the rest
			fmt.Fprintln(stdin, say.word)
			out.WaitFor(e, say.want)
			cancel()
			_ = stdin.Close() // for the goroutine that reads it
			if err := <-done; !errors.Is(err, context.Canceled) {
				e.Logf("attach ended with %v", err) // or with the container
			}
		}
		c.stop(0) // not before: containerd ends an attach with its container, whatever of the output is on its way
		c.wantExit(137)
		c.wantLog("got one\n")
		c.wantLog("then two\n")
		p.remove()
	})
}

func TestPortForward(t *testing.T) {
	eachWay(t, func(e *env) {
		p := e.pod("p")
		c := p.run("c", []string{
			"sh", "-c",
			"mkdir /tmp/www && echo hello >/tmp/www/index.html && exec httpd -f -p 127.0.0.1:8080 -h /tmp/www",
		})
		harness.Eventually(e, "an answer", func() error { return c.succeeds("wget", "-qO-", "http://127.0.0.1:8080/") })
		r, err := e.daemon.Runtime.PortForward(e.ctx, &runtimeapi.PortForwardRequest{PodSandboxId: p.ID})
		e.must(err, "port forward")
		where, err := url.Parse(r.GetUrl())
		e.must(err, "address of the port forward")
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		e.must(err, "prepare the port forward")
		stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, where)
		var complaints harness.Buffer
		forward, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready,
			io.Discard, &complaints)
		e.must(err, "port forward")
		go func() { done <- forward.ForwardPorts() }()
		defer func() {
			close(stop)
			e.must(<-done, "end of the port forward")
		}()
		select {
		case <-ready:
		case err := <-done:
			e.Fatalf("port forward: %v", err)
		}
		ports, err := forward.GetPorts()
		e.must(err, "ports")
		if got := e.get(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local)); got != "hello\n" {
			e.Errorf("through the port = %q, want hello\n%s", got, complaints.String())
		}
	})
}

// get returns what an address answers.
func (e *env) get(address string) string {
	e.Helper()
	request, err := http.NewRequestWithContext(e.ctx, http.MethodGet, address, nil)
	e.must(err, address)
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	e.must(err, "get")
	defer func() { _ = answer.Body.Close() }() // it was read
	var text bytes.Buffer
	_, err = io.Copy(&text, answer.Body)
	e.must(err, "read "+address)
	return text.String()
}
