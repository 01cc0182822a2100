// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd

import (
	"context"
	"net"
	"strings"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
)

// callLimit bounds one call. The slowest is a Delete that waits for output: containerd gives it no limit, CRI 10 s.
const callLimit = 20 * time.Second

// Task calls the Task service of a shim. Errors have the class that containerd would see.
type Task struct {
	task.TTRPCTaskService
	client *ttrpc.Client
}

// Close hangs up.
func (t Task) Close() error { return t.client.Close() }

// Dial connects to a shim's socket and calls the Task service of a version, "v2" or "v3": their messages are the same
// on the wire.
func (f *Fake) Dial(address, version string) Task {
	f.Helper()
	conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), callLimit)
	f.Must(err, "dial "+address)
	client := ttrpc.NewClient(conn, ttrpc.WithUnaryClientInterceptor(func(
		ctx context.Context, r *ttrpc.Request, answer *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker,
	) error {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		r.Service = strings.Replace(r.Service, "task.v3", "task."+version, 1)
		err := call(ctx, r, answer)
		if err == nil {
			err = status.ErrorProto(answer.GetStatus())
		}
		return errgrpc.ToNative(err)
	}))
	f.Cleanup(func() { _ = client.Close() })
	return Task{TTRPCTaskService: task.NewTTRPCTaskClient(client), client: client}
}
