// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/internal/testx"
)

// receiver is containerd's end.
type receiver func(context.Context, *types.Envelope) error

func (r receiver) Forward(ctx context.Context, q *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	if err := r(ctx, q.Envelope); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &emptypb.Empty{}, nil
}

func receive(t *testing.T, l *net.UnixListener, r receiver) (stop func()) {
	t.Helper()
	return serve(t, l, func(s *ttrpc.Server) { eventsapi.RegisterTTRPCEventsService(s, r) })
}

func newPublisher(t *testing.T, address string) *Publisher {
	t.Helper()
	p := NewPublisher("ns", address)
	t.Cleanup(func() { testx.Must(t, p.Close()) })
	return p
}

func TestPublish_EveryEvent(t *testing.T) {
	path, l := listen(t)
	envelopes := make(chan *types.Envelope, 16)
	receive(t, l, func(_ context.Context, e *types.Envelope) error { envelopes <- e; return nil })
	p := newPublisher(t, path)
	for _, tc := range allEvents() {
		testx.Must(t, p.Publish(t.Context(), tc.event, time.Unix(8, 9)))
		packed, err := typeurl.MarshalAnyToProto(tc.want)
		testx.Must(t, err)
		wantEqual(t, tc.topic, <-envelopes, &types.Envelope{
			Timestamp: &timestamppb.Timestamp{Seconds: 8, Nanos: 9}, Namespace: "ns", Topic: tc.topic, Event: packed,
		})
		// The table sets each field, so that a new one is noticed.
		fields := tc.want.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if !tc.want.ProtoReflect().Has(fields.Get(i)) {
				t.Errorf("%T: field %s is not compared", tc.want, fields.Get(i).Name())
			}
		}
	}
}

// The bootstrap protocol has this form as its example (containerd api/runtime/bootstrap/v1/bootstrap.proto).
func TestPublish_ToTheAddressAsAURL(t *testing.T) {
	path, l := listen(t)
	topics := make(chan string, 1)
	receive(t, l, func(_ context.Context, e *types.Envelope) error { topics <- e.Topic; return nil })
	testx.Must(t, newPublisher(t, "unix://"+path).Publish(t.Context(), event.TaskOOM{}, time.Now()))
	if got := <-topics; got != "/tasks/oom" {
		t.Errorf("topic = %q", got)
	}
}

func TestPublish_WhatIsTriedAgain(t *testing.T) {
	rejected := map[codes.Code]bool{
		codes.InvalidArgument: true, codes.Unimplemented: true, codes.NotFound: true, codes.PermissionDenied: true,
		codes.FailedPrecondition: true,
	}
	path, l := listen(t)
	var answer error
	receive(t, l, func(context.Context, *types.Envelope) error { return answer })
	p := newPublisher(t, path)
	for _, tc := range classes {
		answer = tc.class
		err := p.Publish(t.Context(), event.TaskOOM{}, time.Now())
		if err == nil || errors.Is(err, event.ErrRejected) != rejected[tc.code] {
			t.Errorf("Publish when the answer is %v = %v, want rejected: %t", tc.class, err, rejected[tc.code])
		}
		testx.WantText(t, err, "/tasks/oom")
		answer = nil
		if err := p.Publish(t.Context(), event.TaskOOM{}, time.Now()); err != nil {
			t.Errorf("Publish after %v: %v", tc.class, err)
		}
	}
}

func TestPublish_WithoutAnAddress(t *testing.T) {
	err := newPublisher(t, "").Publish(t.Context(), event.TaskOOM{}, time.Now())
	if !errors.Is(err, event.ErrRejected) {
		t.Errorf("Publish = %v, want rejected", err)
	}
	testx.WantText(t, err, "TTRPC_ADDRESS")
}

func TestPublish_ContainerdGoesAndComesBack(t *testing.T) {
	path, l := listen(t)
	take := func(context.Context, *types.Envelope) error { return nil }
	stop := receive(t, l, take)
	p := newPublisher(t, path)
	publish := func() error { return p.Publish(t.Context(), event.TaskOOM{}, time.Now()) }
	for range 3 {
		testx.Must(t, publish())
		stop()
		// ttrpc's server closes its connections in goroutines of their own, so one may still answer.
		var err error
		for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); {
			err = publish()
		}
		for range 2 {
			if err == nil || errors.Is(err, event.ErrRejected) {
				t.Errorf("Publish while the receiver is away = %v, want an error that may pass", err)
			}
			err = publish()
		}
		stop = receive(t, listenAt(t, path), take)
	}
	testx.Must(t, publish())
	p = newPublisher(t, filepath.Join(t.TempDir(), "nobody"))
	if err := publish(); err == nil || errors.Is(err, event.ErrRejected) {
		t.Errorf("Publish to where nobody was = %v, want an error that may pass", err)
	}
}

// The events of a container's next shim must not overtake those of the one before, which containerd found again when it
// was restarted.
func TestPublish_DialsAgainAtOnceWhenContainerdIsBack(t *testing.T) {
	path, l := listen(t)
	take := func(context.Context, *types.Envelope) error { return nil }
	stop := receive(t, l, take)
	p := newPublisher(t, path)
	for range 3 {
		testx.Must(t, p.Publish(t.Context(), event.TaskOOM{}, time.Now()))
		stop()
		awaitClosed(t, p)
		stop = receive(t, listenAt(t, path), take)
	}
	testx.Must(t, p.Publish(t.Context(), event.TaskOOM{}, time.Now()))
}

// awaitClosed waits until the publisher's connection is closed by the other end.
func awaitClosed(t *testing.T, p *Publisher) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := p.client.Call(t.Context(), "no service", "no method", &emptypb.Empty{}, &emptypb.Empty{})
		if errors.Is(err, ttrpc.ErrClosed) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("call = %v, want that the connection is closed", err)
		}
	}
}

func TestPublish_IsBounded(t *testing.T) {
	path, l := listen(t)
	receive(t, l, func(ctx context.Context, _ *types.Envelope) error { <-ctx.Done(); return ctx.Err() })
	p := newPublisher(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := p.Publish(ctx, event.TaskOOM{}, start); err == nil || errors.Is(err, event.ErrRejected) {
		t.Errorf("Publish to a receiver that hangs = %v, want an error that may pass", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Publish took %v after its context had 50 ms", took)
	}
}

// Not even what containerd does not read holds a shim up.
func TestPublish_IsBoundedWhileNobodyReads(t *testing.T) {
	path, l := listen(t)
	t.Cleanup(func() { _ = l.Close() }) // listen may have closed it
	p := newPublisher(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	large := event.TaskCreate{Bundle: strings.Repeat("x", 2<<20)} // more than the kernel buffers
	ended := make(chan error, 1)
	go func() { ended <- p.Publish(ctx, large, time.Now()) }() // joined below
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Publish = %v, want that its time is over", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Publish waits for a reader")
	}
}

// all is each event with all of its fields. The topics are those of
// containerd's core/runtime/events.go, as text: a constant of theirs would move
// with them, and what runs elsewhere would not.
func allEvents() []struct {
	event event.Event
	topic string
	want  proto.Message
} {
	at, stamp := time.Unix(5, 6), &timestamppb.Timestamp{Seconds: 5, Nanos: 6}
	return []struct {
		event event.Event
		topic string
		want  proto.Message
	}{
		{
			event.TaskCreate{
				ContainerID: "c", Bundle: "/b", Checkpoint: "/cp", Pid: 7,
				Rootfs: []event.Mount{{Type: "t", Source: "s", Target: "g", Options: []string{"o", "p"}}, {Type: "u"}},
				Stdin:  "i", Stdout: "o", Stderr: "e", Terminal: true,
			},
			"/tasks/create",
			&events.TaskCreate{
				ContainerID: "c", Bundle: "/b", Checkpoint: "/cp", Pid: 7,
				Rootfs: []*types.Mount{{Type: "t", Source: "s", Target: "g", Options: []string{"o", "p"}}, {Type: "u"}},
				IO:     &events.TaskIO{Stdin: "i", Stdout: "o", Stderr: "e", Terminal: true},
			},
		},
		{event.TaskStart{ContainerID: "c", Pid: 7}, "/tasks/start", &events.TaskStart{ContainerID: "c", Pid: 7}},
		{event.TaskOOM{ContainerID: "c"}, "/tasks/oom", &events.TaskOOM{ContainerID: "c"}},
		{
			event.TaskExit{ContainerID: "c", ID: "e", Pid: 7, Status: 137, At: at},
			"/tasks/exit",
			&events.TaskExit{ContainerID: "c", ID: "e", Pid: 7, ExitStatus: 137, ExitedAt: stamp},
		},
		{
			event.TaskDelete{ContainerID: "c", ID: "e", Pid: 7, Status: 137, At: at},
			"/tasks/delete",
			&events.TaskDelete{ContainerID: "c", ID: "e", Pid: 7, ExitStatus: 137, ExitedAt: stamp},
		},
		{event.TaskExecAdded{ContainerID: "c", ExecID: "e"}, "/tasks/exec-added", &events.TaskExecAdded{ContainerID: "c", ExecID: "e"}},
		{event.TaskExecStarted{ContainerID: "c", ExecID: "e", Pid: 7}, "/tasks/exec-started", &events.TaskExecStarted{ContainerID: "c", ExecID: "e", Pid: 7}},
		{event.TaskPaused{ContainerID: "c"}, "/tasks/paused", &events.TaskPaused{ContainerID: "c"}},
		{event.TaskResumed{ContainerID: "c"}, "/tasks/resumed", &events.TaskResumed{ContainerID: "c"}},
		{event.TaskCheckpointed{ContainerID: "c", Checkpoint: "/cp"}, "/tasks/checkpointed", &events.TaskCheckpointed{ContainerID: "c", Checkpoint: "/cp"}},
	}
}
