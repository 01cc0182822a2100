// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	eventtypes "github.com/containerd/containerd/api/events"
	events "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/event"
)

// Publisher sends events to containerd. Its Publish is an event.Publisher. One goroutine at a time calls Publish or
// Close. A containerd that hangs is dialled again when the context of an attempt has ended.
type Publisher struct {
	namespace string
	address   string
	client    *ttrpc.Client
}

// NewPublisher returns a Publisher that dials when there is something to send. address is containerd's ttrpc socket, as
// a path or as unix://PATH: containerd sends the former, and its bootstrap protocol has an example of the latter.
func NewPublisher(namespace, address string) *Publisher {
	return &Publisher{namespace: namespace, address: strings.TrimPrefix(address, "unix://")}
}

// Publish sends one event. The error is event.ErrRejected if containerd refuses the event; any other error may be
// temporary.
func (p *Publisher) Publish(ctx context.Context, e event.Event, at time.Time) error {
	if p.address == "" {
		return fmt.Errorf("containerd gave no TTRPC_ADDRESS: %w", event.ErrRejected)
	}
	topic, m := message(e)
	packed, err := typeurl.MarshalAnyToProto(m)
	if err != nil {
		return fmt.Errorf("%w: %w", err, event.ErrRejected)
	}
	request := &events.ForwardRequest{
		Envelope: &types.Envelope{Timestamp: timestamppb.New(at), Namespace: p.namespace, Topic: topic, Event: packed},
	}
	kept := p.client != nil
	err = p.forward(ctx, request)
	if kept && errors.Is(err, ttrpc.ErrClosed) {
		// containerd has exited since the last event. Usually it is running again and sends requests: if this event
		// waited for the queue's next attempt, those of the next shim of the same container could overtake it.
		err = p.forward(ctx, request)
	}
	if err == nil {
		return nil
	}
	if native := errgrpc.ToNative(err); refused(native) {
		return fmt.Errorf("containerd refuses %s: %w: %w", topic, native, event.ErrRejected)
	}
	return fmt.Errorf("send %s: %w", topic, err)
}

// forward sends an event. It dials if there is no connection, and keeps none after an error.
func (p *Publisher) forward(ctx context.Context, request *events.ForwardRequest) error {
	if p.client == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", p.address)
		if err != nil {
			return err
		}
		p.client = ttrpc.NewClient(conn)
	}
	client := p.client
	defer context.AfterFunc(ctx, func() { _ = client.Close() })() // otherwise ttrpc could wait forever for its write
	_, err := events.NewTTRPCEventsClient(client).Forward(ctx, request)
	if err != nil {
		_ = p.Close() // it may be broken
		return cmp.Or(ctx.Err(), err)
	}
	return nil
}

// refused reports whether containerd would answer the same next time.
func refused(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || errdefs.IsNotFound(err) ||
		errdefs.IsPermissionDenied(err) || errdefs.IsFailedPrecondition(err)
}

// Close closes the connection. The next Publish dials again.
func (p *Publisher) Close() error {
	if p.client == nil {
		return nil
	}
	err := p.client.Close()
	p.client = nil
	return err
}

// message returns the topic and the message by which containerd knows an event (containerd core/runtime/events.go and
// api/events/task.proto).
func message(e event.Event) (topic string, _ proto.Message) {
	switch e := e.(type) {
	case event.TaskCreate:
		return "/tasks/create", &eventtypes.TaskCreate{
			ContainerID: e.ContainerID, Bundle: e.Bundle, Rootfs: rootfs(e.Rootfs), Checkpoint: e.Checkpoint,
			Pid: uint32(e.Pid),
			IO:  &eventtypes.TaskIO{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, Terminal: e.Terminal},
		}
	case event.TaskStart:
		return "/tasks/start", &eventtypes.TaskStart{ContainerID: e.ContainerID, Pid: uint32(e.Pid)}
	case event.TaskOOM:
		return "/tasks/oom", &eventtypes.TaskOOM{ContainerID: e.ContainerID}
	case event.TaskExit:
		return "/tasks/exit", &eventtypes.TaskExit{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status),
			ExitedAt: timestamppb.New(e.At),
		}
	case event.TaskDelete:
		return "/tasks/delete", &eventtypes.TaskDelete{
			ContainerID: e.ContainerID, ID: e.ID, Pid: uint32(e.Pid), ExitStatus: uint32(e.Status),
			ExitedAt: timestamppb.New(e.At),
		}
	case event.TaskExecAdded:
		return "/tasks/exec-added", &eventtypes.TaskExecAdded{ContainerID: e.ContainerID, ExecID: e.ExecID}
	case event.TaskExecStarted:
		return "/tasks/exec-started", &eventtypes.TaskExecStarted{
			ContainerID: e.ContainerID, ExecID: e.ExecID, Pid: uint32(e.Pid),
		}
	case event.TaskPaused:
		return "/tasks/paused", &eventtypes.TaskPaused{ContainerID: e.ContainerID}
	case event.TaskResumed:
		return "/tasks/resumed", &eventtypes.TaskResumed{ContainerID: e.ContainerID}
	case event.TaskCheckpointed:
		return "/tasks/checkpointed", &eventtypes.TaskCheckpointed{ContainerID: e.ContainerID, Checkpoint: e.Checkpoint}
	}
	panic(fmt.Sprintf("service: event %T has no message", e))
}

func rootfs(list []event.Mount) []*types.Mount {
	var all []*types.Mount
	for _, m := range list {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
