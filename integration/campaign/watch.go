// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package campaign

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/typeurl/v2"

	"sandbox.internal/shim/integration/harness"
)

// readyTopic is of an event that the worker publishes itself, to see that it is subscribed.
const readyTopic = "/campaign/ready"

// watch starts the goroutine that reads containerd's events. It returns once they come. unwatch ends and joins it.
func (e *Env) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	messages, errs := e.client.Subscribe(ctx, "topic~=^/tasks/", fmt.Sprintf("topic==%q", readyTopic))
	ready, done := make(chan struct{}, 1), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		defer close(done)
		for {
			select {
			case m := <-messages:
				if m.Topic == readyTopic {
					select {
					case ready <- struct{}{}:
					default: // it was seen already
					}
					continue
				}
				event, err := typeurl.UnmarshalAny(m.Event)
				if err != nil {
					continue
				}
				e.order.add(m.Namespace, event, m.Timestamp)
			case err := <-errs: // by cancel, or containerd was killed: either way nothing more comes
				ended <- err
				return
			}
		}
	}()
	e.unwatch = func() { cancel(); <-done }
	return harness.Poll(func() error {
		err := e.client.EventService().Publish(e.namespaced(ctx), readyTopic, &events.NamespaceCreate{Name: e.name})
		if err != nil {
			return fmt.Errorf("publish an event: %w", err)
		}
		select {
		case <-ready:
			return nil
		case err := <-ended:
			return fmt.Errorf("no more events: %w", err)
		default:
			return errors.New("containerd's events do not come")
		}
	})
}
