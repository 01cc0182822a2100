// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/protofield"
	"sandbox.internal/shim/pkg/stdio"
)

// The streaming service carries standard streams over ttrpc, for CRI's io_type "streaming". A client calls Stream and
// sends a StreamInit with the id of the stream. An Empty is sent back immediately. Then both sides speak the protocol
// of containerd's byte streams (core/streaming/proxy, core/transfer/streaming): the reader grants a window in
// WindowUpdate messages, the writer sends no more than that in Data messages, and the end of the call is the end of the
// stream.

const (
	streamingService = "containerd.services.streaming.v1.Streaming"
	streamInit       = "containerd.services.streaming.v1.StreamInit" // api/services/streaming/v1
	// maxData and window are containerd's (core/transfer/streaming, maxRead and windowSize). A client that writes stops
	// at the window.
	maxData = 32 << 10
	window  = 2 * maxData
)

func registerStreaming(server *ttrpc.Server, x *stdio.StreamRegistry) {
	server.RegisterService(streamingService, &ttrpc.ServiceDesc{Streams: map[string]ttrpc.Stream{
		"Stream": {
			Handler: func(ctx context.Context, s ttrpc.StreamServer) (any, error) {
				err := intercept("/"+streamingService+"/Stream", func() error { return stream(ctx, s, x) })
				if err != nil {
					err = toStatus(err)
				}
				return nil, err
			},
			StreamingClient: true,
			StreamingServer: true,
		},
	}})
}

func stream(ctx context.Context, s ttrpc.StreamServer, x *stdio.StreamRegistry) error {
	var first anypb.Any
	if err := s.RecvMsg(&first); err != nil {
		return err
	}
	id, err := streamID(&first)
	if err != nil {
		return err
	}
	p := &streamPeer{stream: s, changed: make(chan struct{}, 1)}
	if err := p.send(empty); err != nil {
		return err
	}
	go p.receive() // ends with the client's side, or when ttrpc ends the context of this call, which it does on return
	return x.Serve(ctx, id, p)
}

func streamID(a *anypb.Any) (string, error) {
	if a.GetTypeUrl() != streamInit {
		return "", fmt.Errorf("first message %q: want %s: %w", a.GetTypeUrl(), streamInit, errdefs.ErrInvalidArgument)
	}
	var id string
	if err := protofield.Decode(a.GetValue(), &id); err != nil {
		return "", fmt.Errorf("decode %s: %w: %w", streamInit, err, errdefs.ErrInvalidArgument)
	}
	if id == "" {
		return "", fmt.Errorf("%s: no id: %w", streamInit, errdefs.ErrInvalidArgument)
	}
	return id, nil
}

// streamPeer is the client of one call as stdio.Peer.
//
// Its receiver takes every message as it comes: ttrpc drops a call whose messages wait for a second, and until then
// they block all other calls of the connection (ttrpc services.go, streamHandler.data). The window bounds what is kept.
type streamPeer struct {
	stream  ttrpc.StreamServer
	changed chan struct{} // has one element when something below changed

	mu      sync.Mutex
	granted int    // by the client: what may be sent
	open    int    // by us: what the client may still send
	input   []byte // received, not asked for yet
	// +checklocks:mu
	err error // what ended the receiving; io.EOF when the client has no more
}

// Send implements stdio.Peer.
func (p *streamPeer) Send(ctx context.Context, b []byte) (sent int, err error) {
	for len(b) > 0 {
		n, err := p.reserve(ctx, min(len(b), maxData))
		if err != nil {
			return sent, err
		}
		if err := p.send(&transfer.Data{Data: b[:n]}); err != nil {
			return sent, err
		}
		b, sent = b[n:], sent+n
	}
	return sent, nil
}

// reserve waits until the client has granted a window, and takes up to want bytes of it.
func (p *streamPeer) reserve(ctx context.Context, want int) (int, error) {
	for {
		p.mu.Lock()
		n := min(want, p.granted)
		p.granted -= n
		err := p.err
		p.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case err != nil && !errors.Is(err, io.EOF):
			return 0, err
		case err != nil:
			return 0, fmt.Errorf("the client grants nothing and has ended its side: %w", errdefs.ErrAborted)
		}
		if err := p.wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Recv implements stdio.Peer.
func (p *streamPeer) Recv(ctx context.Context) ([]byte, error) {
	for {
		p.mu.Lock()
		b, err := p.input, p.err
		p.input = nil
		grant := 0
		if len(b) == 0 && err == nil && p.open <= window/2 { // not for each keystroke
			grant = window - p.open
			p.open = window
		}
		p.mu.Unlock()
		switch {
		case len(b) > 0:
			return b, nil
		case err != nil:
			return nil, err
		}
		if grant > 0 {
			if err := p.send(&transfer.WindowUpdate{Update: int32(grant)}); err != nil {
				return nil, err
			}
		}
		if err := p.wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (p *streamPeer) wait(ctx context.Context) error {
	select {
	case <-p.changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *streamPeer) send(m proto.Message) error {
	a, err := typeurl.MarshalAnyToProto(m)
	if err != nil {
		return err
	}
	return p.stream.SendMsg(a)
}

// next receives the next message. When a client hangs up, ttrpc chooses at random between a message that is there and
// the end of the call (services.go, RecvMsg). 64 attempts miss a message with a probability of 2^-64.
func (p *streamPeer) next(a *anypb.Any) (err error) {
	for range 64 {
		if err = p.stream.RecvMsg(a); !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return err
}

// receive takes what the client sends, until the client has no more or breaks the protocol, or the call ends.
func (p *streamPeer) receive() {
	for {
		var a anypb.Any
		err := p.next(&a)
		p.mu.Lock()
		if err == nil {
			err = p.takeLocked(&a)
		}
		p.err = err
		p.mu.Unlock()
		select {
		case p.changed <- struct{}{}:
		default: // a wake-up is pending
		}
		if err != nil {
			return
		}
	}
}

func (p *streamPeer) takeLocked(a *anypb.Any) error {
	m, err := a.UnmarshalNew()
	if err != nil {
		return fmt.Errorf("message %q: %w: %w", a.GetTypeUrl(), err, errdefs.ErrInvalidArgument)
	}
	switch m := m.(type) {
	case *transfer.WindowUpdate:
		if m.Update < 0 {
			return fmt.Errorf("window update of %d bytes: must be at least 0: %w", m.Update, errdefs.ErrInvalidArgument)
		}
		p.granted += int(m.Update)
	case *transfer.Data:
		if len(m.Data) > p.open {
			return fmt.Errorf(
				"%d bytes of data, where the window is %d: %w", len(m.Data), p.open, errdefs.ErrResourceExhausted,
			)
		}
		p.open -= len(m.Data)
		p.input = append(p.input, m.Data...)
	default:
		return fmt.Errorf("message %q: want Data or WindowUpdate: %w", a.GetTypeUrl(), errdefs.ErrInvalidArgument)
	}
	return nil
}
