// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/cmd/sandboxctl/node"
)

// API is what containerd is asked.
type API interface {
	Version(ctx context.Context) (string, error)
	// Known lists containers, tasks and sandboxes.
	Known(ctx context.Context) (leftover.Known, error)
	Close() error
}

// knownTimeout is for the lists of containers: containerd asks each shim for its tasks, one after the other, and waits
// 2 s for one that hangs (plugins/services/tasks/local.go).
const knownTimeout = 30 * time.Second

// askDaemon asks for what only containerd knows.
func (e *Examination) askDaemon(ctx context.Context) {
	e.versionErr, e.knownErr = e.daemonErr, e.daemonErr
	if e.daemonErr != nil {
		return
	}
	api, err := e.Probes.Connect(e.Root.Path(e.Address))
	if err != nil {
		e.versionErr, e.knownErr = err, err
		return
	}
	defer func() { _ = api.Close() }() // it was only asked
	short, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	e.version, e.versionErr = api.Version(short)
	long, cancel := context.WithTimeout(ctx, max(e.Timeout, knownTimeout))
	defer cancel()
	e.known, err = api.Known(long)
	if err != nil && errors.Is(long.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not in time, perhaps since shims hang: it waits 2 s for each (--timeout gives more time): %w", err)
	}
	e.knownErr = err
}

// connection is an API over gRPC.
type connection struct{ *grpc.ClientConn }

func connect(address string) (API, error) {
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(node.MaxMessage)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return connection{conn}, nil
}

func (c connection) Version(ctx context.Context) (string, error) {
	v, err := versionapi.NewVersionClient(c).Version(ctx, &emptypb.Empty{})
	return v.GetVersion(), err
}

func (c connection) Known(ctx context.Context) (leftover.Known, error) {
	known := leftover.Known{}
	list, err := namespacesapi.NewNamespacesClient(c).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range list.GetNamespaces() {
		ids, err := c.ids(ctx, n.GetName())
		if err != nil {
			return nil, fmt.Errorf("list containers of %s: %w", n.GetName(), err)
		}
		for _, id := range ids {
			known[leftover.Name{Namespace: n.GetName(), ID: id}] = true
		}
	}
	return known, nil
}

func (c connection) ids(ctx context.Context, namespace string) (ids []string, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	stream, err := containersapi.NewContainersClient(c).ListStream(ctx, &containersapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = ctx.Err() // containerd ends a list that was cut off as one that is complete
			if err == nil {
				break
			}
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, m.GetContainer().GetID())
	}
	tasks, err := tasksapi.NewTasksClient(c).List(ctx, &tasksapi.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("tasks: %w", err)
	}
	for _, t := range tasks.GetTasks() {
		ids = append(ids, t.GetID())
	}
	boxes, err := node.Sandboxes(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("sandboxes: %w", err)
	}
	for _, b := range boxes {
		ids = append(ids, b.GetSandboxID())
	}
	return ids, nil
}
