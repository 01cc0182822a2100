// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
)

// ping returns nil once the daemon behind path answers a request, whatever the answer. A socket that accepts is not
// enough: it listens before its daemon runs, and the daemon may still fail.
func ping(ctx context.Context, path, id string) error {
	conn, err := dial(ctx, path)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // the answer is in, or there is none
	_, err = taskapi.NewTTRPCTaskClient(client).Connect(ctx, &taskapi.ConnectRequest{ID: id})
	if ctx.Err() != nil {
		return fmt.Errorf("ping %s: %w", path, ctx.Err())
	}
	if _, answered := status.FromError(err); answered {
		return nil
	}
	return fmt.Errorf("ping %s: %w", path, err)
}

// dial connects to the socket at path. Where as many wait to be accepted as can, which connect(2) tells by EAGAIN, it
// waits as well, until ctx ends.
func dial(ctx context.Context, path string) (net.Conn, error) {
	const again = 2 * time.Millisecond
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if !errors.Is(err, unix.EAGAIN) {
			return conn, err
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// RemoveSocket removes the socket that start recorded in the bundle of container id, if no shim listens on it.
func RemoveSocket(ctx context.Context, bundle, id string) error {
	data, err := os.ReadFile(filepath.Join(bundle, addressFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil // start has made none
	}
	if err != nil {
		return err
	}
	path, ok := strings.CutPrefix(string(data), socketAddress(""))
	if !ok || !filepath.IsAbs(path) {
		return fmt.Errorf("%q in %s is no socket: %w", data, filepath.Join(bundle, addressFile), errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*hangTimeout)
	defer cancel()
	if alive, err := Serves(ctx, path, id); err != nil || alive {
		return err
	}
	return removeDeadSocket(ctx, path)
}

// hangTimeout is for the answer of a shim that is alive. One that hangs is: its containers are not to be taken from it.
const hangTimeout = time.Second

// How long Serves waits before it tries again: a shim that was killed is dead within milliseconds, while want of memory
// or descriptors may last.
const (
	firstAgain = 2 * time.Millisecond
	lastAgain  = 100 * time.Millisecond
)

// Serves reports whether a living shim listens on socket. It is dead if the kernel says that nobody listens there:
// connect(2) is refused, or there is no socket. No other error proves that: this process, the machine or the shim may
// lack descriptors or memory; and while a process of many threads dies, its sockets are open for some milliseconds
// more, and connections to them are reset. So Serves tries again until ctx ends, which is an error.
func Serves(ctx context.Context, socket, id string) (bool, error) {
	began := time.Now()
	var last error
	for tries, wait := 1, firstAgain; ; tries, wait = tries+1, min(2*wait, lastAgain) {
		try, cancel := context.WithTimeout(ctx, hangTimeout)
		err := ping(try, socket, id)
		hangs := try.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
			return false, nil
		case err == nil, hangs:
			return true, nil
		case last == nil || ctx.Err() == nil: // the error of a try that was cut short says nothing
			last = err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return false, fmt.Errorf("socket %s: it neither answers nor is it refused, %d tries in %v: %w: %w",
				socket, tries, time.Since(began).Round(time.Millisecond), last, errdefs.ErrUnavailable)
		}
	}
}
