// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package shim finds the socket of a shim and asks it: this project's for all that it knows
// (pkg/service/inspect.proto), others for what containerd's Task API has.
//
// A connection keeps a shim alive that containerd has given up. So a [Client] is for a few calls, and not kept.
package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

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
	conn, peer, err := DialOwn(ctx, a.Path)
	if err != nil {
		return nil, fmt.Errorf("shim at %s: %w", a.Path, err)
	}
	task := fmt.Sprintf("containerd.task.v%d.Task", a.Version)
	return &Client{Peer: peer, client: ttrpc.NewClient(conn), task: task}, nil
}

// DialOwn connects to a socket, and returns the process that has made it. It refuses one of another user, whom root
// must not trust.
func DialOwn(ctx context.Context, path string) (net.Conn, int, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, 0, err
	}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	var peer *unix.Ucred
	if err == nil {
		outer := raw.Control(func(s uintptr) { peer, err = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED) })
		err = cmp.Or(outer, err)
	}
	if err == nil && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("belongs to user %d, want user %d", peer.Uid, os.Geteuid())
	}
	if err != nil {
		_ = conn.Close() // nothing was said
		return nil, 0, err
	}
	return conn, int(peer.Pid), nil
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

// own calls this project's service. Its messages have no Go types: an Empty carries them as unknown fields. The
// error of another shim is errdefs.ErrNotImplemented.
func (c *Client) own(ctx context.Context, method string, request []any, answer ...any) error {
	encoded, err := protofield.Encode(request...)
	if err != nil {
		return err
	}
	var from, to emptypb.Empty
	from.ProtoReflect().SetUnknown(encoded)
	if err := c.call(ctx, "io.containerd.sandbox.v1.Inspect", method, &from, &to); err != nil {
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
	if err := c.own(ctx, "Inspect", []any{containerID}, &text); err != nil {
		return inspect.Answer{}, err
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return inspect.Answer{}, fmt.Errorf("inspect: decode the answer: %w", err)
	}
	return answer, nil
}

// Stacks returns the stack of each goroutine, or the first of them if they are too many.
func (c *Client) Stacks(ctx context.Context) (text string, err error) {
	err = c.own(ctx, "Stacks", nil, &text)
	return text, err
}

// Sleep puts a container to sleep, and Wake wakes it (docs/idle.md). The error of a shim that does not know this is
// errdefs.ErrNotImplemented.
func (c *Client) Sleep(ctx context.Context, containerID string) error {
	return c.own(ctx, "Sleep", []any{containerID})
}

// Wake is the opposite of Sleep.
func (c *Client) Wake(ctx context.Context, containerID string) error {
	return c.own(ctx, "Wake", []any{containerID})
}

// Upgrade has the shim replace its program by the installed one, or only try it, and returns the version of the program
// that answers. upgraded is false if the installed one runs already. The error of a shim that does not know this is
// errdefs.ErrNotImplemented.
func (c *Client) Upgrade(ctx context.Context, dryRun bool) (version string, upgraded bool, err error) {
	var dry uint32
	if dryRun {
		dry = 1
	}
	err = c.own(ctx, "Upgrade", []any{nil, dry}, &version, &upgraded)
	return version, upgraded, err
}

// Address is where a shim listens.
type Address struct {
	Path    string // of the socket
	Version int    // of containerd's Task API
}

// Directories of bundles below containerd's state directory: of tasks, and of sandboxes that its shim controller made.
const (
	tasks     = "io.containerd.runtime.v2.task"
	sandboxes = "io.containerd.sandbox.controller.v1.shim"
)

// ErrNoBundle means that there is no task or sandbox with an id.
var ErrNoBundle = errors.New("no bundle")

// Find returns the address of the shim of a container or a sandbox. state is containerd's state directory. If it does
// not use ttrpc over a unix socket, as this project's do, the error is errdefs.ErrNotImplemented.
func Find(state, namespace, id string) (Address, error) {
	bundle, err := Bundle(state, namespace, id)
	if err != nil {
		return Address{}, err
	}
	return readAddress(bundle)
}

// Bundle returns the directory of a container or a sandbox. No id leads out of the state directory.
func Bundle(state, namespace, id string) (string, error) {
	for _, name := range []string{namespace, id} {
		if err := identifiers.Validate(name); err != nil {
			return "", err
		}
	}
	for _, kind := range []string{tasks, sandboxes} {
		bundle := filepath.Join(state, kind, namespace, id)
		if info, err := os.Lstat(bundle); err == nil && info.IsDir() {
			return bundle, nil
		}
	}
	return "", fmt.Errorf("%s in namespace %s: %w below %s", id, namespace, ErrNoBundle, state)
}

// params are what containerd wrote when it started a shim, or when a container joined one.
type params struct {
	Version  int    `json:"version"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
}

// readParams reads bootstrap.json of containerd 2, or only the address of older ones.
func readParams(bundle string) (p params, err error) {
	text, err := readFile(filepath.Join(bundle, "bootstrap.json"))
	if err == nil {
		if err := json.Unmarshal(text, &p); err != nil {
			return params{}, fmt.Errorf("%s/bootstrap.json: %w", bundle, err)
		}
		return p, nil
	}
	const before2 = 2
	if text, err = readFile(filepath.Join(bundle, "address")); err != nil {
		return params{}, err
	}
	return params{Version: before2, Address: string(text), Protocol: "ttrpc"}, nil
}

func readAddress(bundle string) (Address, error) {
	p, err := readParams(bundle)
	if err != nil {
		return Address{}, err
	}
	if p.Protocol != "ttrpc" {
		return Address{}, fmt.Errorf("%s/bootstrap.json: protocol %q: only ttrpc is spoken: %w",
			bundle, p.Protocol, errdefs.ErrNotImplemented)
	}
	if scheme, _, ok := strings.Cut(strings.TrimPrefix(p.Address, "ttrpc+"), "://"); ok && scheme != "unix" {
		return Address{}, fmt.Errorf("%s/bootstrap.json: address %q: only unix sockets are spoken to: %w",
			bundle, p.Address, errdefs.ErrNotImplemented)
	}
	return checkAddress(p.Address, p.Version)
}

// Socket returns the path of the socket of the shim of a bundle, whether there is one or not.
func Socket(bundle string) (path string, err error) {
	p, err := readParams(bundle)
	if err != nil {
		return "", err
	}
	return socketPath(p.Address)
}

func socketPath(address string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(address, "ttrpc+"), "unix://")
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", fmt.Errorf("shim address %q: must be a unix socket with an absolute path", address)
	}
	return path, nil
}

// checkAddress refuses what is not a socket of this user: nothing is sent to others.
func checkAddress(address string, version int) (Address, error) {
	path, err := socketPath(address)
	if err != nil {
		return Address{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return Address{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if info.Mode().Type() != os.ModeSocket || !ok || int(stat.Uid) != os.Geteuid() {
		return Address{}, fmt.Errorf("shim address %s: must be a socket of user %d", path, os.Geteuid())
	}
	return Address{Path: path, Version: version}, nil
}

// readFile reads a small file, and no symbolic link.
func readFile(path string) ([]byte, error) {
	const maxSize = 64 << 10
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return io.ReadAll(io.LimitReader(f, maxSize))
}
