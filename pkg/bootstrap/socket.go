// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"

	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/unixfile"
)

const (
	defaultSocketDir = "/run/containerd/s"
)

// socketPath names the socket of a group, as containerd's own shims do (pkg/shim/util_unix.go).
func socketPath(dir, address, namespace, group string) string {
	return filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(address, namespace, group)))))
}

// socketAddress returns path as containerd dials it.
func socketAddress(path string) string { return "unix://" + path }

// addressFile is in the bundle, for delete and for containerd: 1.x reads it after a restart, 2.x without
// bootstrap.json.
const addressFile = "address"

// recordSocket makes the directory of the group's socket, and records the socket in the bundle.
func (r *request) recordSocket() (err error) {
	if r.group, err = ShimGroup(r.Bundle, r.ID); err != nil {
		return err
	}
	dir := cmp.Or(r.socketDir, defaultSocketDir)
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("socket directory %q: not an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	r.SocketPath = socketPath(dir, r.Address, r.Namespace, r.group)
	if r.group != r.ID && identifiers.Validate(r.group) == nil { // the pod's bundle is beside this one
		path, err := recordedSocket(filepath.Join(filepath.Dir(r.Bundle), r.group))
		if err == nil && filepath.Dir(path) == dir { // the shim may be another pod's as well
			r.SocketPath = path
		}
	}
	return writeAddress(r.Bundle, socketAddress(r.SocketPath))
}

func writeAddress(bundle, address string) error {
	return unixfile.Write(filepath.Join(bundle, addressFile), []byte(address))
}

// recordedSocket returns the path of the socket that is recorded in bundle.
func recordedSocket(bundle string) (string, error) {
	data, err := os.ReadFile(filepath.Join(bundle, addressFile))
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(string(data), socketAddress(""))
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("address %q in bundle %s is no socket: %w", data, bundle, errdefs.ErrInvalidArgument)
	}
	return path, nil
}

// ShimGroup returns the group of the container in bundle: the pod's id, or id. containerd's shim sandbox controller
// writes no config.json.
func ShimGroup(bundle, id string) (string, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return "", err
	}
	return groupIn(data, id)
}

// groupIn returns the group that a config.json names, or id.
func groupIn(data []byte, id string) (string, error) {
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return "", fmt.Errorf("config.json: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	// The order is that of containerd's runc shim (cmd/containerd-shim-runc-v2/manager).
	group := cmp.Or(spec.Annotations["io.containerd.runc.v2.group"], spec.Annotations["io.kubernetes.cri.sandbox-id"], id)
	// The group is part of a path that is hashed: ".." could name the socket of a shim in another namespace.
	if path.Clean("/"+group) != "/"+group {
		return "", fmt.Errorf(
			"config.json: annotations: group of the shim %q: must not hold empty, \".\" or \"..\" elements: %w",
			group, errdefs.ErrInvalidArgument)
	}
	return group, nil
}

// listen binds path, or returns ErrAlreadyExists if a running shim serves it. A socket without a listener is replaced;
// any other file is an error. The directory's lock makes both one step.
func listen(ctx context.Context, path string) (*listener, error) {
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	return listenLocked(ctx, path)
}

// listenLocked is listen with the lock of the directory.
func listenLocked(ctx context.Context, path string) (*listener, error) {
	l, err := bind(path)
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	if err := removeUnheard(ctx, path); err != nil {
		return nil, err
	}
	return bind(path)
}

// bind makes the listening socket, with mode 0600 from the beginning. net.Listen reads /proc for the backlog, which
// takes 0.2 of start's 5 ms.
func bind(path string) (*listener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // the listener has a duplicate
	if err = unix.Fchmod(fd, 0o600); err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		return nil, fmt.Errorf("bind socket %s: %w", path, err)
	}
	var l *listener
	if err = unix.Listen(fd, unix.SOMAXCONN); err == nil {
		l, err = newListener(f)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on socket %s: %w", path, err), unixfile.Remove(path))
	}
	return l, nil
}

// newListener returns a listener with a duplicate of f, which removes the file of the socket.
func newListener(f *os.File) (*listener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	unixListener, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen on a %T: %w", l, errdefs.ErrInvalidArgument), l.Close())
	}
	unixListener.SetUnlinkOnClose(true)
	return &listener{unixListener}, nil
}

// removeUnheard removes a socket without a listener, or returns ErrAlreadyExists. The caller has the directory's lock.
func removeUnheard(ctx context.Context, path string) error {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return nil //nolint:nilerr // gone, or not ours to remove
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path) // never blocks
	switch {
	case err == nil:
		_ = conn.Close() // only the connect counts
		return fmt.Errorf("socket %s: %w", path, errdefs.ErrAlreadyExists)
	case errors.Is(err, unix.EAGAIN): // a full backlog is a listener too
		return fmt.Errorf("socket %s: %w", path, errdefs.ErrAlreadyExists)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return unixfile.Remove(path)
	default:
		return err
	}
}

// listener is the daemon's socket. Its first Close removes the file before it ends the listener: until then no start
// replaces the file. It is a pointer, since ttrpc has listeners in a map.
type listener struct{ idle.Listener }

// Bounds on the doubling wait after an error of accept. containerd waits 2 s for a State.
const firstAccept, lastAccept = time.Millisecond, 100 * time.Millisecond

// Accept implements net.Listener. An error other than that of a close or a deadline is temporary, such as ENOMEM, and
// would end the ttrpc server. Only the first of a row is logged.
func (l *listener) Accept() (net.Conn, error) {
	for wait := firstAccept; ; wait = min(2*wait, lastAccept) {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if wait == firstAccept {
			log.L.WithError(err).Error("connections wait, and are tried again")
		}
		<-time.After(wait)
	}
}

// RemoveSocket removes the socket that start recorded in bundle, and its links, unless it has a listener.
func RemoveSocket(ctx context.Context, bundle string) error {
	path, err := recordedSocket(bundle)
	if errors.Is(err, os.ErrNotExist) {
		return nil // start has made none
	}
	if err != nil {
		return err
	}
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path))
	if err == nil {
		if err = removeUnheard(ctx, path); err == nil {
			err = removeLinks(bundle, path)
		}
		unlock()
	}
	if errors.Is(err, os.ErrNotExist) || errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// hangTimeout bounds the wait for the answer of a running shim. A shim that hangs counts as running.
const hangTimeout = time.Second

// Serves reports whether a running shim listens on socket. Only a refused connect(2) and a missing socket prove that
// the shim is dead: after other errors, such as too few descriptors, Serves tries again until ctx ends, which is an
// error.
func Serves(ctx context.Context, socket, id string) (bool, error) {
	var last error
	for {
		hangs, cancel := context.WithTimeout(ctx, hangTimeout)
		err := ping(hangs, socket, id)
		hung := hangs.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil, hung:
			return true, nil
		case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
			return false, nil
		case last == nil || !errors.Is(err, context.DeadlineExceeded): // a try that was cut short says nothing
			last = err
		}
		select {
		case <-time.After(5 * time.Millisecond): // one that was killed is dead by then
		case <-ctx.Done():
			return false, fmt.Errorf("socket %s: neither an answer nor a refusal: %w: %w", socket, last, errdefs.ErrUnavailable)
		}
	}
}

// ping returns nil if the daemon at socket answers a request, or its backlog is full (connect(2)). The socket of a
// dying process accepts too.
func ping(ctx context.Context, socket, id string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // the answer is in, or there is none
	_, err = taskapi.NewTTRPCTaskClient(client).Connect(ctx, &taskapi.ConnectRequest{ID: id})
	if _, answered := status.FromError(err); answered {
		return nil
	}
	return err
}
