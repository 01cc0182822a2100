// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/streaming"
	"github.com/containerd/containerd/v2/core/streaming/proxy"
	bytestream "github.com/containerd/containerd/v2/core/transfer/streaming"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/integration/harness"
)

// named is the IO of a process whose streams have names that the client does not open.
type named struct{ config cio.Config }

func (n named) Config() cio.Config { return n.config }
func (n named) Cancel()            {}
func (n named) Wait()              {}
func (n named) Close() error       { return nil }

// create is a cio.Creator.
func (n named) create(string) (cio.IO, error) { return n, nil }

// streamsOf names the streams of a process as CRI's io_type "streaming" does: the shim's own socket and an id
// (containerd internal/cri/io/helpers.go, newStreams). The tests open them.
func streamsOf(address, id string) cio.Config {
	name := func(stream string) string { return "ttrpc+" + address + "?streaming_id=" + id + "-" + stream }
	return cio.Config{Stdin: name("stdin"), Stdout: name("stdout"), Stderr: name("stderr")}
}

// pod starts a container whose shim the containers of the test join, and returns the address of the shim.
func (e *env) pod() (address string) {
	e.Helper()
	c := e.run("pod", config{opts: with(inOneShim)}, "sleep", "1000")
	e.Cleanup(c.kill)
	address, err := harness.ShimAddress(e.bundle("pod"))
	e.must(err, "address of the shim")
	return address
}

// startStreamed starts a container with these streams.
func (e *env) startStreamed(id string, streams cio.Config, args ...string) *process {
	e.Helper()
	return e.logged(id, named{streams}.create, []oci.SpecOpts{inOneShim}, args...)
}

// connection is one stream with the connection it has to itself, as CRI's have.
type connection struct {
	streaming.Stream
	client *ttrpc.Client
}

// dial opens a stream by its name, with containerd's own client (internal/cri/io/streaming.go, openStream).
func (e *env) dial(name string) connection {
	e.Helper()
	u, err := url.Parse(name)
	e.must(err, "name of a stream")
	socket, err := net.Dial("unix", u.Path)
	e.must(err, "dial "+name)
	c := ttrpc.NewClient(socket)
	e.Cleanup(func() { _ = c.Close() })
	stream, err := proxy.NewStreamCreator(c).Create(e.ctx, u.Query().Get("streaming_id"))
	e.must(err, "open "+name)
	return connection{stream, c}
}

// input opens a standard input.
func (e *env) input(name string) (w io.WriteCloser, drop func()) {
	e.Helper()
	c := e.dial(name)
	return bytestream.WriteByteStream(e.ctx, c), func() { e.must(c.client.Close(), "hang up") }
}

// output opens an output.
func (e *env) output(name string) (r io.ReadCloser, drop func()) {
	e.Helper()
	c := e.dial(name)
	return bytestream.ReadByteStream(e.ctx, c), func() { e.must(c.client.Close(), "hang up") }
}

func (e *env) wantLine(r *bufio.Reader, want string) {
	e.Helper()
	if got, err := r.ReadString('\n'); got != want+"\n" {
		e.Fatalf("line = %q, %v, want %q", got, err, want)
	}
}

func TestStreaming_CarriesStreamsOfAContainerAndAnExec(t *testing.T) {
	harness.OursOnly(t, "streaming IO")
	e := newEnv(t)
	const script = "cat; echo error >&2; exit 3"
	address := e.pod()
	start := map[string]func(cio.Config) *process{
		"c1": func(streams cio.Config) *process { return e.startStreamed("c1", streams, "sh", "-c", script) },
		"e1": func(streams cio.Config) *process {
			pod := e.reload("pod")
			spec, err := pod.container.Spec(e.ctx)
			e.must(err, "spec")
			spec.Process.Args = []string{"sh", "-c", script}
			p := &process{e: e, err: &harness.Buffer{}}
			p.Process, err = pod.Task.Exec(e.ctx, "e1", spec.Process, named{streams}.create)
			e.must(err, "exec")
			p.exited, err = p.Wait(e.ctx)
			e.must(err, "wait")
			e.must(p.Start(e.ctx), "start")
			return p
		},
	}
	for _, id := range []string{"c1", "e1"} {
		streams := streamsOf(address, id)
		// As CRI does, before there is a process.
		in, _ := e.input(streams.Stdin)
		out, _ := e.output(streams.Stdout)
		errOut, _ := e.output(streams.Stderr)
		p := start[id](streams)
		text := strings.Repeat("0123456789abcdef\n", 1<<16) // more than windows and pipes hold
		written := make(chan error, 1)
		go func() {
			_, err := io.WriteString(in, text)
			written <- err
		}()
		got := make([]byte, len(text))
		_, err := io.ReadFull(out, got)
		e.must(err, "read stdout of "+id)
		if !bytes.Equal(got, []byte(text)) {
			t.Errorf("stdout of %s is not what was put in", id)
		}
		e.must(<-written, "write stdin of "+id)
		e.must(in.Close(), "end the client's side of stdin")
		e.must(p.CloseIO(e.ctx, withStdin), "close stdin of "+id)
		rest, err := io.ReadAll(out)
		if len(rest) > 0 || err != nil {
			t.Errorf("rest of stdout of %s = %q, %v, want its end", id, rest, err)
		}
		if got, err := io.ReadAll(errOut); string(got) != "error\n" || err != nil {
			t.Errorf("stderr of %s = %q, %v, want %q", id, got, err, "error\n")
		}
		p.wantExit(3)
	}
}

func TestStreaming_ClientThatComesBackFindsItsStreams(t *testing.T) {
	harness.OursOnly(t, "streaming IO")
	e := newEnv(t)
	streams := streamsOf(e.pod(), "c1")
	streams.Stderr = "" // nobody reads it
	p := e.startStreamed("c1", streams, "sh", "-c", `while read -r line; do echo "got $line"; done; echo end`)
	connections := e.shimSockets()
	in, dropIn := e.input(streams.Stdin)
	out, dropOut := e.output(streams.Stdout)
	e.typeLine(in, "one")
	e.wantLine(bufio.NewReader(out), "got one")
	dropIn()
	dropOut()
	// What a shim sends before it sees that the client hung up is lost: nothing in the protocol tells it what arrived.
	harness.Eventually(t, "the shim sees that its clients hung up", func() error {
		if now := e.shimSockets(); now != connections {
			return fmt.Errorf("it has %d sockets, %d before they came", now, connections)
		}
		return nil
	})

	in, _ = e.input(streams.Stdin)
	e.typeLine(in, "two") // its answer has no reader yet
	e.typeLine(in, "three")
	out, _ = e.output(streams.Stdout)
	lines := bufio.NewReader(out)
	e.wantLine(lines, "got two")
	e.wantLine(lines, "got three")
	e.must(in.Close(), "end the client's side of stdin")
	e.must(p.CloseIO(e.ctx, withStdin), "close stdin")
	e.wantLine(lines, "end")
	p.wantExit(0)
}

// shimSockets counts the sockets of the pod's shim.
func (e *env) shimSockets() int {
	e.Helper()
	usage, err := harness.ReadUsage(e.shim("pod"))
	e.must(err, "descriptors of the shim")
	return len(slices.DeleteFunc(usage.FDs, func(fd string) bool { return !strings.HasPrefix(fd, "socket:") }))
}

func TestStreaming_NoByteIsLostBetweenClients(t *testing.T) {
	harness.OursOnly(t, "streaming IO")
	e := newEnv(t)
	const count = "300000"
	want, err := exec.CommandContext(e.ctx, e.containerd.Env.Busybox, "seq", count).Output()
	e.must(err, "seq")
	streams := streamsOf(e.pod(), "c1")
	streams.Stderr = "" // nobody reads it
	p := e.startStreamed("c1", streams, "seq", count)
	var got bytes.Buffer
	for clients, ended := 1, false; !ended; clients++ {
		out, drop := e.output(streams.Stdout)
		_, err := io.CopyN(&got, out, 200_000)
		if ended = errors.Is(err, io.EOF); !ended {
			e.must(err, "read stdout")
			// It grants no more and takes what is on its way: 256 KiB in all, or 320 if the last grant was faster. That
			// may be all there was, and then nobody may come after it: the shim would let him wait for a further
			// process of that name.
			e.must(out.Close(), "end the client's side")
			_, err = io.Copy(&got, out)
			if ended = err == nil; !errdefs.IsAborted(err) {
				e.must(err, "read what is on its way")
			}
		}
		drop()
		t.Logf("client %d came to byte %d", clients, got.Len())
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("clients read %d bytes, want the %d of seq", got.Len(), len(want))
	}
	p.wantExit(0)
}
