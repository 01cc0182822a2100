// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/integration/harness"
)

const rowShimStart = "the shim's start command"

func startGroup() group {
	return group{
		name: "start", about: "what containerd runs to get a shim, without a container",
		rows: []row{{Name: rowShimStart, Unit: "ms", Target: target{Ratio: 0.60}}},
		measure: func(b *bench, ctx context.Context) error {
			return b.turns(ctx, b.settings.Rounds, func(ctx context.Context, column int, s *subject) error {
				if b.borrowed(column) {
					return nil
				}
				return s.host.startCommand(ctx, s, b.id("start"), func(took float64, shim shimOf) error {
					b.add(rowShimStart, column, took)
					return shim.shutdown(ctx, true)
				})
			})
		},
	}
}

// startCommand times what containerd runs for each new shim, with runtime options. The bundle is there until then
// returns, which ends the shim.
func (h *host) startCommand(
	ctx context.Context, s *subject, id string, then func(took float64, shim shimOf) error, options ...*anypb.Any,
) error {
	bundle := filepath.Join(h.Dir, "bundles", id)
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(bundle) }() // host.stop removes the parent
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":"1.2.0"}`), 0o600); err != nil {
		return err
	}
	closeLog, err := makeLog(bundle)
	if err != nil {
		return err
	}
	defer closeLog()
	var extensions []*bootstrap.Extension
	for _, one := range options {
		extensions = append(extensions, &bootstrap.Extension{Value: one})
	}
	params, err := proto.Marshal(&bootstrap.BootstrapParams{
		InstanceID: id, Namespace: h.namespace, ContainerdVersion: "2.4.2",
		ContainerdGrpcAddress: h.Address, ContainerdTtrpcAddress: h.Address + ".ttrpc",
		ContainerdBinary: h.Env.Daemon, SocketDir: &h.Sockets, Extensions: extensions,
	})
	if err != nil {
		return err
	}
	// An interrupt waits for this: a start that is cut short may leave a shim that nobody knows.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), harness.Slow(20*time.Second))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.shim, "-namespace", h.namespace, "-address", h.Address,
		"-publish-binary", h.Env.Daemon, "-id", id, "start")
	cmd.Dir, cmd.Stdin = bundle, bytes.NewReader(params)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "MAX_SHIM_VERSION=2", "NAMESPACE="+h.namespace,
		"TTRPC_ADDRESS="+h.Address+".ttrpc", "GRPC_ADDRESS="+h.Address)
	var out []byte
	took, err := timed(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var result bootstrap.BootstrapResult
	if err := proto.Unmarshal(out, &result); err != nil {
		return fmt.Errorf("decode answer %q: %w", out, err)
	}
	return then(took, shimOf{id, strings.TrimPrefix(result.Address, "unix://")})
}

// shimOf is the shim that has, or is to have, a container.
type shimOf struct{ id, socket string }

// makeLog makes the fifo for a shim's log, as containerd does: the runc shim ends where there is none. What a shim says
// in its short life fits into the pipe.
func makeLog(bundle string) (closeLog func(), err error) {
	name := filepath.Join(bundle, "log")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, fmt.Errorf("make fifo %s: %w", name, err)
	}
	log, err := os.OpenFile(name, os.O_RDWR, 0) // so that it opens at once, and the shim's end too
	if err != nil {
		return nil, err
	}
	return func() { _ = log.Close() }, nil // nobody reads it
}

// shutdown says that a container is gone. With ends, that is the end of the shim, which is awaited.
func (s shimOf) shutdown(ctx context.Context, ends bool) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	client := ttrpc.NewClient(conn, ttrpc.WithOnClose(func() { close(closed) }))
	defer func() { _ = client.Close() }() // the shim may have closed it already
	_, err = taskapi.NewTTRPCTaskClient(client).Shutdown(ctx, &taskapi.ShutdownRequest{ID: s.id, Now: true})
	if !ends {
		return err
	}
	select { // the answer may be lost: the shim is entitled to be gone first
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shim at %s does not shut down: %w", s.socket, ctx.Err())
	}
}
