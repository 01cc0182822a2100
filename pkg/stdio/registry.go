// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// StreamRegistry connects the streams of processes that lead to the shim's own ttrpc socket with their clients, by
// streaming id.
//
// Either may come first: CRI opens its streams before it calls Create (containerd internal/cri/io/helpers.go,
// newStdioStream). A client that goes away can come back: meanwhile output waits and stdin stays open. Each id has one
// client; a new one replaces the former, whose connection may be dead unnoticed.
type StreamRegistry struct {
	mu sync.Mutex
	// +checklocks:mu
	streams map[string]*stream
	// +checklocks:mu
	clients map[string]*client
	// +checklocks:mu
	arrived chan struct{} // closed, and replaced, when a stream is added
}

// client is one call of Serve.
type client struct{ cancel context.CancelCauseFunc }

// NewStreamRegistry returns an empty StreamRegistry.
func NewStreamRegistry() *StreamRegistry {
	return &StreamRegistry{streams: map[string]*stream{}, clients: map[string]*client{}, arrived: make(chan struct{})}
}

// Peer is the connection of a client. Its methods return when ctx ends. Recv also returns once the client is gone,
// after it has returned all that the client sent.
type Peer interface {
	// Send sends output, all of it unless there is an error. n is how much was sent.
	Send(ctx context.Context, b []byte) (n int, err error)
	// Recv returns the next part of stdin, which is valid until the next call. The error is io.EOF when the client has
	// no more.
	Recv(ctx context.Context) ([]byte, error)
}

// Serve waits for the stream of that id to be opened and carries it to or from peer. It returns nil when the stream or
// the client ends, and an error when ctx does; what the client wrote to stdin before that is delivered all the same.
// The error is errdefs.ErrAborted when another client came.
func (x *StreamRegistry) Serve(call context.Context, id string, peer Peer) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(call))
	defer cancel(nil)
	detach := context.AfterFunc(call, func() { cancel(context.Cause(call)) })
	defer detach()
	defer x.connect(id, &client{cancel})()
	s, err := x.await(ctx, id)
	if err != nil {
		return err
	}
	select {
	case s.serving <- struct{}{}:
		defer func() { <-s.serving }()
	case <-ctx.Done():
		return fmt.Errorf("stream %q: wait for the client before to let go: %w", id, context.Cause(ctx))
	}
	serve := s.send
	if s.reader == nil {
		detach() // Recv tells when there is no more
		serve = s.receive
	}
	defer context.AfterFunc(s.removed, func() { cancel(nil) })()
	if err := serve(ctx, peer); err != nil && s.removed.Err() == nil {
		return fmt.Errorf("stream %q: %w", id, err)
	}
	return nil
}

// connect makes c the client of id and ends the service of the one before it.
func (x *StreamRegistry) connect(id string, c *client) (leave func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if former := x.clients[id]; former != nil {
		former.cancel(fmt.Errorf("another client came: %w", errdefs.ErrAborted))
	}
	x.clients[id] = c
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.clients[id] == c {
			delete(x.clients, id)
		}
	}
}

// await returns the stream of that id once it is opened.
func (x *StreamRegistry) await(ctx context.Context, id string) (*stream, error) {
	for {
		x.mu.Lock()
		s, arrived := x.streams[id], x.arrived
		x.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("stream %q: wait for the process: %w", id, context.Cause(ctx))
		}
	}
}

// add registers s.
func (x *StreamRegistry) add(s *stream) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.streams[s.id]; ok {
		return fmt.Errorf("streaming id %q: another process has it: %w", s.id, errdefs.ErrAlreadyExists)
	}
	x.streams[s.id] = s
	close(x.arrived)
	x.arrived = make(chan struct{})
	return nil
}

func (x *StreamRegistry) remove(s *stream) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.streams[s.id] == s {
		delete(x.streams, s.id)
	}
}
