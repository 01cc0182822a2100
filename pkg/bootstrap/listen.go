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
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/unixfile"
)

// listener is a bound, listening socket.
type listener struct {
	path string
	info os.FileInfo // of the file at path
	file *os.File    // the listening descriptor
}

// abandon closes the socket that nobody will serve, and removes its file.
func (l *listener) abandon() error { return errors.Join(l.remove(), l.file.Close()) }

// remove removes the socket's file.
func (l *listener) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return removeSocket(ctx, l.path, l.info)
}

// backlog is how many connections may wait while the daemon comes up; the kernel lowers it to net.core.somaxconn.
const backlog = 128

// lockPoll is how often a held lock is tried again. It is held for tens of microseconds.
const lockPoll = 200 * time.Microsecond

// listen binds path, unless a living shim serves it already: then it returns ErrAlreadyExists. A file nobody listens
// on is replaced.
//
// Test and replacement are one step under the directory's lock, so of two starts one binds and the other finds it
// listening: the socket listens before the lock is released.
func listen(ctx context.Context, path string) (*listener, error) {
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path), lockPoll)
	if err != nil {
		return nil, err
	}
	defer unlock()
	l, err := bind(path)
	if !errors.Is(err, unix.EADDRINUSE) {
		return l, err
	}
	alive, err := connectable(path)
	if err != nil {
		return nil, err
	}
	if alive {
		return nil, fmt.Errorf("socket %s: %w", path, errdefs.ErrAlreadyExists)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove dead socket: %w", err)
	}
	return bind(path)
}

// bind makes the listening socket. The mode is set between bind and listen, so nobody can connect before it.
func bind(path string) (*listener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd) // nothing was made
		return nil, fmt.Errorf("bind socket %s: %w", path, err)
	}
	l := &listener{path: path, file: os.NewFile(uintptr(fd), path)}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("bind socket: %w", err), os.Remove(path), l.file.Close())
	}
	if l.info, err = os.Lstat(path); err != nil {
		return nil, errors.Join(fmt.Errorf("bind socket: %w", err), os.Remove(path), l.file.Close())
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on socket %s: %w", path, err), os.Remove(path), l.file.Close())
	}
	return l, nil
}

// connectable reports whether somebody listens at path. It never blocks: a full backlog (EAGAIN) is a listener too.
func connectable(path string) (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, fmt.Errorf("make socket to test %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // only the connect counts
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, fmt.Errorf("connect to socket %s: %w", path, err)
}

// removeSocket removes the file at path if it still is the one of info: a start that found it dead may have put its own
// there. Inode numbers are reused on some file systems, hence the time.
func removeSocket(ctx context.Context, path string, info os.FileInfo) error {
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path), lockPoll)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := os.Lstat(path)
	if err == nil && os.SameFile(now, info) && now.ModTime().Equal(info.ModTime()) {
		return os.Remove(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// removeDeadSocket removes the socket at path if nobody listens on it.
func removeDeadSocket(ctx context.Context, path string) error {
	unlock, err := unixfile.Lock(ctx, filepath.Dir(path), lockPoll)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return nil //nolint:nilerr // gone, or not ours to remove
	}
	alive, err := connectable(path)
	if err != nil || alive {
		return err
	}
	if err := unixfile.Remove(path); err != nil {
		return fmt.Errorf("remove dead socket: %w", err)
	}
	return nil
}

// Bounds on the wait after an error of accept, each twice as long as the one before. containerd waits 2 s for a State.
const (
	firstAccept = time.Millisecond
	lastAccept  = 100 * time.Millisecond
)

// steadyListener accepts until it is closed. Any other error passes: a machine without memory or descriptors gets some
// again, a client has gone before it was accepted. A ttrpc server would end with most of them, such as ENOMEM and
// ENOBUFS, and with it the shim.
type steadyListener struct {
	net.Listener
	closing sync.Once
	closed  chan struct{} // ends the wait of Accept
}

func newSteadyListener(l net.Listener) *steadyListener {
	return &steadyListener{Listener: l, closed: make(chan struct{})}
}

// Accept implements net.Listener. Of the errors until the next connection it logs the first.
func (l *steadyListener) Accept() (net.Conn, error) {
	for wait := firstAccept; ; wait = min(2*wait, lastAccept) {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		if wait == firstAccept {
			log.L.WithError(err).Error("connections wait, and are tried again")
		}
		select {
		case <-time.After(wait):
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (l *steadyListener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
