// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/pkg/api"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/wire"
)

// publishTimeout bounds one attempt, so that a containerd that hangs is left
// and dialled again. It is what containerd's own shims allow.
const publishTimeout = 5 * time.Second

// Publisher sends events to containerd. Its Publish is an event.Publisher, and
// is called by one goroutine at a time, as is Close.
type Publisher struct {
	namespace string
	address   string // containerd's ttrpc socket
	client    *ttrpc.Client
}

// NewPublisher makes a Publisher, which dials when there is something to send.
func NewPublisher(namespace, address string) *Publisher {
	return &Publisher{namespace: namespace, address: address}
}

// Publish sends one event. containerd away, or too busy to answer, is an error
// that may pass; what containerd refuses is event.ErrRejected.
func (p *Publisher) Publish(ctx context.Context, e event.Event, at time.Time) error {
	if p.address == "" {
		return fmt.Errorf("containerd gave no TTRPC_ADDRESS: %w", event.ErrRejected)
	}
	topic, name, m := message(e)
	packed, err := pack(name, m)
	if err != nil {
		return fmt.Errorf("%w: %w", err, event.ErrRejected)
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if err := p.dial(ctx); err != nil {
		return err
	}
	err = p.client.Call(ctx, "containerd.services.events.ttrpc.v1.Events", "Forward", wire.Message(&api.ForwardRequest{
		Envelope: &api.Envelope{Timestamp: timestamp(at), Namespace: p.namespace, Topic: topic, Event: packed},
	}), wire.Message(&api.Empty{}))
	if err == nil {
		return nil
	}
	p.hangUp()
	if native := errgrpc.ToNative(err); refused(native) {
		return fmt.Errorf("containerd refuses %s: %w: %w", topic, native, event.ErrRejected)
	}
	return fmt.Errorf("send %s: %w", topic, err)
}

// refused tells an answer of containerd that will be the same next time.
func refused(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || errdefs.IsNotFound(err) ||
		errdefs.IsPermissionDenied(err) || errdefs.IsFailedPrecondition(err)
}

func (p *Publisher) dial(ctx context.Context) error {
	if p.client != nil {
		return nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", p.address)
	if err != nil {
		return err
	}
	p.client = ttrpc.NewClient(conn)
	return nil
}

func (p *Publisher) hangUp() {
	if p.client != nil {
		_ = p.client.Close() // it is broken already
		p.client = nil
	}
}

// Close hangs up.
func (p *Publisher) Close() error {
	if p.client == nil {
		return nil
	}
	if err := p.client.Close(); err != nil && !errors.Is(err, ttrpc.ErrClosed) {
		return err
	}
	return nil
}
