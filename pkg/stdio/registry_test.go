// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// fakePeer is a client in memory.
type fakePeer struct {
	input chan []byte // closed: the client has no more
	sent  chan []byte // what it was sent; a Send waits until it is taken
}

func newFakePeer() *fakePeer {
	return &fakePeer{input: make(chan []byte), sent: make(chan []byte)}
}

func (p *fakePeer) Send(ctx context.Context, b []byte) (int, error) {
	select {
	case p.sent <- bytes.Clone(b):
		return len(b), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (p *fakePeer) Recv(ctx context.Context) ([]byte, error) {
	select {
	case b, ok := <-p.input:
		if !ok {
			return nil, io.EOF
		}
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// serve runs Serve for a new client.
func serve(ctx context.Context, x *StreamRegistry, id string) (*fakePeer, <-chan error) {
	p, served := newFakePeer(), make(chan error, 1)
	go func() { served <- x.Serve(ctx, id, p) }() // ends with the stream or ctx; the caller waits for served
	return p, served
}

// read takes exactly len(want) bytes.
func (p *fakePeer) read(t *testing.T, want string) {
	t.Helper()
	var got []byte
	within(t, "the client's read", func() {
		for len(got) < len(want) {
			got = append(got, <-p.sent...)
		}
	})
	if string(got) != want {
		t.Fatalf("client was sent %q, want %q", abbreviate(got), abbreviate([]byte(want)))
	}
}

func wantServed(t *testing.T, served <-chan error, want error) {
	t.Helper()
	within(t, "Serve", func() {
		if err := <-served; !errors.Is(err, want) {
			t.Errorf("Serve() = %v, want %v", err, want)
		}
	})
}

// newStreamed is an env whose streams lead to clients.
func newStreamed(t *testing.T, names ...string) (*env, *StreamRegistry) {
	t.Helper()
	return newStreamedKept(t, 0, names...)
}

// newStreamedKept is newStreamed where unread output is not kept for ever.
func newStreamedKept(t *testing.T, unread time.Duration, names ...string) (*env, *StreamRegistry) {
	t.Helper()
	checkLeaks(t)
	c := Config{Host: NewHost("ns", newFakeChildren(t)), KeepUnread: unread}
	for _, n := range names {
		uri := "ttrpc+unix:///run/s.sock?streaming_id=c1-" + n
		switch n {
		case "stdin":
			c.Stdin = uri
		case "stdout":
			c.Stdout = uri
		case "stderr":
			c.Stderr = uri
		}
	}
	return &env{t, mustOpen(t, c), ""}, c.Host.StreamRegistry
}

func TestStreamRegistry_ClientsThatComeFirst(t *testing.T) {
	host := NewHost("ns", newFakeChildren(t))
	x := host.StreamRegistry
	checkLeaks(t)
	in, inServed := serve(t.Context(), x, "c1-stdin")
	out, outServed := serve(t.Context(), x, "c1-stdout")
	errs, errServed := serve(t.Context(), x, "c1-stderr")
	const uri = "ttrpc+unix:///run/s.sock?streaming_id=c1-"
	r := &env{t, mustOpen(t, Config{Stdin: uri + "stdin", Stdout: uri + "stdout", Stderr: uri + "stderr", Host: host}), ""}
	cmd := r.run("sh", "-c", "cat; echo to stderr >&2")
	in.input <- []byte("to ")
	in.input <- []byte("stdout")
	close(in.input)
	wantServed(t, inServed, nil)
	if err := r.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	out.read(t, "to stdout")
	errs.read(t, "to stderr\n")
	wantServed(t, outServed, nil)
	wantServed(t, errServed, nil)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	within(t, "Drain", func() {
		if err := r.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v, want nil", err)
		}
	})
}

func TestStream_OutputWaitsForAClientThatComesBack(t *testing.T) {
	r, x := newStreamed(t, "stdout")
	process := r.process()
	r.started()
	text := pattern(300_000) // more than the pipes hold
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(process, text)
		process.Close()
		written <- err
	}()

	// The first client takes one part, and goes while the next is under way.
	ctx, cancel := context.WithCancel(t.Context())
	first, served := serve(ctx, x, "c1-stdout")
	got := string(<-first.sent)
	eventually(t, "the first client is being sent more", func() bool { return strings.Contains(goroutines(), "(*fakePeer).Send") })
	cancel()
	wantServed(t, served, context.Canceled)

	second, served := serve(t.Context(), x, "c1-stdout")
	second.read(t, strings.TrimPrefix(text, got))
	wantServed(t, served, nil)
	if err := <-written; err != nil {
		t.Errorf("write of the process: %v", err)
	}
	within(t, "Drain", func() {
		if err := r.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v, want nil", err)
		}
	})
}

func TestStream_InputStaysOpenBetweenClients(t *testing.T) {
	r, x := newStreamed(t, "stdin", "stdout")
	out, outServed := serve(t.Context(), x, "c1-stdout")
	r.run("cat")
	for _, part := range []string{"one ", "two "} {
		in, served := serve(t.Context(), x, "c1-stdin")
		in.input <- []byte(part)
		out.read(t, part)
		close(in.input)
		wantServed(t, served, nil)
	}
	if err := r.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	wantServed(t, outServed, nil)
}

func TestStreamRegistry_NewClientReplacesTheFormer(t *testing.T) {
	tests := []struct {
		name, id string
		streams  []string
	}{
		{"of an output", "c1-stdout", []string{"stdout"}},
		{"of stdin", "c1-stdin", []string{"stdin"}},
		{"of a stream that is not there yet", "c2-stdout", []string{"stdout"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, x := newStreamed(t, tt.streams...)
			if tt.streams[0] == "stdout" {
				r.process() // keeps the stream from its end
			}
			r.started()
			_, former := serve(t.Context(), x, tt.id)
			eventually(t, "the client is known", func() bool {
				_, ok := x.clients.Load(tt.id)
				return ok
			})
			ctx, cancel := context.WithCancel(t.Context())
			peer, latter := serve(ctx, x, tt.id)
			wantServed(t, former, errdefs.ErrAborted)
			cancel()
			close(peer.input) // Recv sees that the client is gone
			within(t, "Serve", func() {
				<-latter //nolint:errcheck // that its client is gone
			})
		})
	}
}

// CRI closes the connection right behind the last byte of stdin.
func TestStream_WhatAClientWroteBeforeItLeftReachesStdin(t *testing.T) {
	r, x := newStreamed(t, "stdin", "stdout")
	out, outServed := serve(t.Context(), x, "c1-stdout")
	r.run("cat")
	ctx, cancel := context.WithCancel(t.Context())
	in, served := serve(ctx, x, "c1-stdin")
	in.input <- []byte("one ")
	cancel()
	within(t, "the client's last words", func() {
		in.input <- []byte("two")
		close(in.input)
	})
	wantServed(t, served, nil)
	if err := r.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	out.read(t, "one two")
	wantServed(t, outServed, nil)
}

func TestStreamRegistry_CloseEndsTheServiceOfClients(t *testing.T) {
	r, x := newStreamed(t, "stdin", "stdout", "stderr")
	process := r.process()
	r.started()
	_, in := serve(t.Context(), x, "c1-stdin")
	out, outServed := serve(t.Context(), x, "c1-stdout")
	_, errServed := serve(t.Context(), x, "c1-stderr")
	write(t, process, pattern(100))
	out.read(t, pattern(100))
	write(t, process, "nobody takes this")
	eventually(t, "the client is being sent more", func() bool { return strings.Contains(goroutines(), "(*fakePeer).Send") })
	within(t, "Close", func() { _ = r.Close() })
	for _, served := range []<-chan error{in, outServed, errServed} {
		wantServed(t, served, nil)
	}
}

func TestStream_WithoutClientsIsGivenUp(t *testing.T) {
	r, _ := newStreamed(t, "stdin", "stdout")
	if err := r.run("echo", "hello").Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the output", func() bool {
		c := r.outputCopiers()[0]
		return c.is(func() bool { return c.eof })
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Drain(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Drain() = %v, want that nobody reads", err)
	}
	within(t, "Close", func() { _ = r.Close() })
}

// collector is what all clients of a test write to.
type collector struct {
	*fakePeer
	mu  sync.Mutex
	got []byte
}

func (c *collector) Send(ctx context.Context, b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	c.got = append(c.got, b...)
	return len(b), nil
}

func (c *collector) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

// Clients that are replaced while the process writes: nothing is lost, and nothing comes twice.
func TestStreamRegistry_ClientsReplaceEachOther(t *testing.T) {
	r, x := newStreamed(t, "stdout")
	process := r.process()
	r.started()
	text := pattern(1 << 20)
	// The end comes when every client has had its turn: one that comes later would wait for another process.
	last := text[len(text)-1:]
	go func() { _, _ = io.WriteString(process, text[:len(text)-1]) }() // ends when all is read

	var c collector
	const clients = 20
	served := make(chan error, clients)
	for i := range clients {
		go func() { served <- x.Serve(t.Context(), "c1-stdout", &c) }() // the test waits for served
		eventually(t, "more has come", func() bool { return c.len() > i*30_000 })
	}
	for range clients - 1 {
		within(t, "Serve of a client that another one replaced", func() {
			if err := <-served; !errors.Is(err, errdefs.ErrAborted) {
				t.Errorf("Serve() = %v, want ErrAborted", err)
			}
		})
	}
	eventually(t, "all but the end has come", func() bool { return c.len() == len(text)-1 })
	write(t, process, last)
	_ = process.Close()
	wantServed(t, served, nil)
	if string(c.got) != text {
		t.Errorf("clients got %d bytes, want the %d that were written", len(c.got), len(text))
	}
}
