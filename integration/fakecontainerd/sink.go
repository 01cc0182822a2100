// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/integration/eventlog"
)

// sink is the part of containerd that shims call: they forward events to it.
type sink struct {
	fake   *Fake
	server *ttrpc.Server
	served chan struct{} // closed when the goroutine that serves has ended
}

// TTRPCAddress is the address of the sink.
func (f *Fake) TTRPCAddress() string { return filepath.Join(f.Dir, "c.sock.ttrpc") }

// SinkUp serves the sink, after New or SinkDown.
func (f *Fake) SinkUp() {
	f.Helper()
	server, err := ttrpc.NewServer()
	f.Must(err, "sink")
	s := &sink{fake: f, server: server, served: make(chan struct{})}
	events.RegisterTTRPCEventsService(server, s)
	listener, err := net.Listen("unix", f.TTRPCAddress())
	f.Must(err, "sink")
	go s.serve(listener)
	f.sink = s
}

// SinkDown ends the sink as if containerd were killed between two events: connections break, the address refuses. An
// event that is being answered still is, because one whose answer is lost is sent again.
func (f *Fake) SinkDown() {
	f.Helper()
	if f.sink == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := f.sink.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = f.sink.server.Close() // a connection that stays open
	}
	<-f.sink.served
	f.sink = nil
	if err := errors.Join(err, os.RemoveAll(f.TTRPCAddress())); err != nil {
		f.Errorf("sink: %v", err)
	}
}

// serve is the goroutine of the sink. It ends when the server is closed.
func (s *sink) serve(l net.Listener) {
	defer close(s.served)
	if err := s.server.Serve(context.Background(), l); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
		s.fake.Errorf("sink: %v", err)
	}
}

// Forward records an event.
func (s *sink) Forward(_ context.Context, r *events.ForwardRequest) (*emptypb.Empty, error) {
	e := r.GetEnvelope()
	event, err := typeurl.UnmarshalAny(e.GetEvent())
	if err != nil {
		s.fake.Errorf("event %s: %v", e.GetTopic(), err)
		return nil, err
	}
	if e.GetTimestamp().AsTime().IsZero() || e.GetNamespace() != s.fake.Namespace {
		s.fake.Errorf("event %s: timestamp %v, namespace %q, want a time and %q", e.GetTopic(), e.GetTimestamp(),
			e.GetNamespace(), s.fake.Namespace)
	}
	s.fake.lastMu.Lock()
	defer s.fake.lastMu.Unlock()
	if proto.Equal(e, s.fake.last) {
		return &emptypb.Empty{}, nil // sent again, since SinkDown came before the answer
	}
	s.fake.last = e
	s.fake.Events.Add(eventlog.Entry{Namespace: e.GetNamespace(), Topic: e.GetTopic(), Event: event})
	return &emptypb.Empty{}, nil
}
