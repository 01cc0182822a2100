// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"

	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/pkg/podsandbox"
	"sandbox.internal/shim/pkg/task"
	"sandbox.internal/shim/pkg/wire"
)

// Register adds the services to server: those of tasks, of sandboxes, and of streams.
func Register(server *ttrpc.Server, s *task.Manager, c *podsandbox.Controller) {
	t := &taskService{sandbox: s}
	methods := map[string]ttrpc.Method{
		"State":      method(t.State),
		"Create":     method(t.Create),
		"Start":      method(t.Start),
		"Delete":     method(t.Delete),
		"Pids":       method(t.Pids),
		"Pause":      method(t.Pause),
		"Resume":     method(t.Resume),
		"Checkpoint": method(t.Checkpoint),
		"Kill":       method(t.Kill),
		"Exec":       method(t.Exec),
		"ResizePty":  method(t.ResizePty),
		"CloseIO":    method(t.CloseIO),
		"Update":     method(t.Update),
		"Wait":       method(t.Wait),
		"Stats":      method(t.Stats),
		"Connect":    method(t.Connect),
		"Shutdown":   method(t.Shutdown),
	}
	for _, name := range []string{"containerd.task.v2.Task", "containerd.task.v3.Task"} {
		server.RegisterService(name, &ttrpc.ServiceDesc{Methods: methods})
	}
	registerPods(server, c)
	if x := s.StreamRegistry(); x != nil {
		registerStreaming(server, x)
	}
}

// method makes a handler of f.
func method[Request, Response any](f func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		var r Request
		if err := unmarshal(wire.Message(&r)); err != nil {
			return nil, err
		}
		answer, err := f(ctx, &r)
		if err != nil {
			return nil, err
		}
		return wire.Message(answer), nil
	}
}
