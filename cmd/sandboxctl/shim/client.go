// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package shim finds the socket of a shim and asks it: this project's for all that it knows (pkg/service/inspect.proto
// and runs.proto), others for what containerd's Task API has.
//
// A connection keeps a shim alive that containerd has given up. So a [Client] is for a few calls, and not kept.
package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/protofield"
)

// Client is a connection to one shim.
type Client struct {
	Peer   int // process that has made the socket: a shim of this project itself
	client *ttrpc.Client
	task   string // name of the task service
}

// Dial connects to the shim at a. It refuses one that another user runs.
func Dial(ctx context.Context, a Address) (*Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", a.Path)
	if err != nil {
		return nil, err
	}
	peer, err := CheckPeer(conn.(*net.UnixConn))
	if err != nil {
		_ = conn.Close() // nothing was said
		return nil, fmt.Errorf("shim at %s: %w", a.Path, err)
	}
	task := fmt.Sprintf("containerd.task.v%d.Task", a.Version)
	return &Client{Peer: peer, client: ttrpc.NewClient(conn), task: task}, nil
}

// CheckPeer returns the process that has made the socket. It refuses one that another user runs.
func CheckPeer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	outer := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	switch {
	case outer != nil:
		return 0, outer
	case err != nil:
		return 0, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	case int(peer.Uid) != os.Geteuid():
		return 0, fmt.Errorf("belongs to user %d, want user %d", peer.Uid, os.Geteuid())
	}
	return int(peer.Pid), nil
}

// Close ends the connection.
func (c *Client) Close() { _ = c.client.Close() } // what was asked is answered

// Pid returns the shim's process id, and that of the first process of a container, or 0.
func (c *Client) Pid(ctx context.Context, containerID string) (shim, container int, err error) {
	var answer taskapi.ConnectResponse
	err = c.call(ctx, c.task, "Connect", &taskapi.ConnectRequest{ID: containerID}, &answer)
	return int(answer.ShimPid), int(answer.TaskPid), err
}

func (c *Client) call(ctx context.Context, service, method string, request, answer proto.Message) error {
	if err := c.client.Call(ctx, service, method, request, answer); err != nil {
		if ctx.Err() != nil { // which a status does not wrap
			return fmt.Errorf("%s: %w", method, ctx.Err())
		}
		return fmt.Errorf("%s: %w", method, errgrpc.ToNative(err))
	}
	return nil
}

// own calls one of this project's services. Its messages have no Go types: an Empty carries them as unknown fields. The
// error of another shim is errdefs.ErrNotImplemented.
func (c *Client) own(ctx context.Context, service, method string, request []any, answer ...any) error {
	encoded, err := protofield.Encode(request...)
	if err != nil {
		return err
	}
	var from, to emptypb.Empty
	from.ProtoReflect().SetUnknown(encoded)
	if err := c.call(ctx, "io.containerd.sandbox.v1."+service, method, &from, &to); err != nil {
		if errdefs.IsInvalidArgument(err) && strings.Contains(err.Error(), "service does not exist") { // ttrpc-rust
			err = fmt.Errorf("%w: %w", errdefs.ErrNotImplemented, err)
		}
		return err
	}
	if err := protofield.Decode(to.ProtoReflect().GetUnknown(), answer...); err != nil {
		return fmt.Errorf("%s: decode the answer: %w", method, err)
	}
	return nil
}

// Inspect returns what the shim knows of a container, or of all for an empty id.
func (c *Client) Inspect(ctx context.Context, containerID string) (answer inspect.Answer, err error) {
	var text string
	if err := c.own(ctx, "Inspect", "Inspect", []any{containerID}, &text); err != nil {
		return inspect.Answer{}, err
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return inspect.Answer{}, fmt.Errorf("inspect: decode the answer: %w", err)
	}
	return answer, nil
}

// Stacks returns the stack of each goroutine, or the first of them if they are truncated.
func (c *Client) Stacks(ctx context.Context) (text string, truncated bool, err error) {
	err = c.own(ctx, "Inspect", "Stacks", nil, &text, &truncated)
	return text, truncated, err
}

// Process is one of a container. Its fields are in the order of runs.proto.
type Process struct {
	Pid     int
	Exec    string // to which it belongs; empty: none
	First   bool   // of the exec or of the container
	Name    string
	Started *timestamppb.Timestamp
	CPU     time.Duration
	RSS     uint64
}

// Processes lists the processes of a container in the order of their ids.
func (c *Client) Processes(ctx context.Context, containerID string) (list []Process, err error) {
	err = c.own(ctx, "Runs", "Processes", []any{containerID}, &list)
	return list, err
}
