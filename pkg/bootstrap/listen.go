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
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/unixfile"
)

// listen binds path, unless a living shim serves it already: then it returns ErrAlreadyExists. A socket nobody
// listens on is replaced; any other file stays, and is an error.
//
// Test and replacement are one step under the directory's lock, so of two starts one binds and the other finds it
// listening: the socket listens before the lock is released.
func listen(ctx context.Context, path string) (*net.UnixListener, error) {
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	l, err := bind(ctx, path)
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	alive, err := removeUnheard(ctx, path)
	if err != nil {
		return nil, err
	}
	if alive {
		return nil, fmt.Errorf("socket %s: %w", path, errdefs.ErrAlreadyExists)
	}
	return bind(ctx, path)
}

// backlog is how many connections may wait while the daemon comes up; the kernel lowers it to net.core.somaxconn.
const backlog = 128

// bind makes the listening socket. Its file has mode 0600 from the beginning: the kernel takes it from the socket.
//
// Not by net.Listen: it reads /proc for the backlog, and start takes 0.2 of 5 ms longer.
func bind(ctx context.Context, path string) (*net.UnixListener, error) {
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
	if err = unix.Listen(fd, backlog); err == nil {
		var l net.Listener
		if l, err = net.FileListener(f); err == nil {
			return l.(*net.UnixListener), nil
		}
	}
	_ = f.Close() // so that nobody listens there
	_, removeErr := removeUnheard(ctx, path)
	return nil, errors.Join(fmt.Errorf("listen on socket %s: %w", path, err), removeErr)
}

// connectable reports whether somebody listens at path. It never blocks: a full backlog (EAGAIN) is a listener too.
func connectable(ctx context.Context, path string) (bool, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close() // only the connect counts
		return true, nil
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, err
}

// removeUnheard removes the socket at path unless somebody listens there. What is no socket stays. The caller has the
// directory's lock.
func removeUnheard(ctx context.Context, path string) (alive bool, err error) {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return false, nil //nolint:nilerr // gone, or not ours to remove
	}
	alive, err = connectable(ctx, path)
	if err != nil || alive {
		return alive, err
	}
	if err := unixfile.Remove(path); err != nil {
		return false, fmt.Errorf("remove dead socket: %w", err)
	}
	return false, nil
}

// removeDeadSocket removes the socket at path if nobody listens on it.
func removeDeadSocket(ctx context.Context, path string) error {
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	_, err = removeUnheard(ctx, path)
	return err
}

// retire closes l, if its server has not, and removes the socket. One that another start has put in its place stays.
func retire(l *net.UnixListener) error {
	err := l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(err, removeDeadSocket(ctx, l.Addr().String()))
}

// Bounds on the wait after an error of accept, each twice as long as the one before. containerd waits 2 s for a State.
const (
	firstAccept = time.Millisecond
	lastAccept  = 100 * time.Millisecond
)

// steadyListener accepts until it is closed. Any other error passes: a machine without memory or descriptors gets some
// again, a client has gone before it was accepted. A ttrpc server would end with most of them, such as ENOMEM and
// ENOBUFS, and with it the shim.
type steadyListener struct{ net.Listener }

// Accept implements net.Listener. Of the errors until the next connection it logs the first.
func (l steadyListener) Accept() (net.Conn, error) {
	for wait := firstAccept; ; wait = min(2*wait, lastAccept) {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		if wait == firstAccept {
			log.L.WithError(err).Error("connections wait, and are tried again")
		}
		<-time.After(wait)
	}
}
