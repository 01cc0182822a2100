// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// consoleTimeout bounds the wait for the terminal's master. Unless the runtime is broken, it sent the master before it
// reported the process as created.
const consoleTimeout = 10 * time.Second

// terminal is the terminal of a process.
//
// The master is read through Go's poller. containerd/console has an Epoller because a master answers EIO and stays
// ready while nobody has the terminal open, so that a level-triggered poll would spin. Go's poller is edge-triggered
// too (runtime/netpoll_epoll.go): a reader that takes EIO for "nothing yet" sleeps until the terminal is opened and
// written again, without a second poller and its goroutine.
type terminal struct {
	socket *pipeEnd // ours
	peer   *os.File // the runtime's

	// Guarded by Streams.mu.
	master *pipeEnd      // nil before Started
	size   *unix.Winsize // asked for before there was a master
}

func newTerminal() (*terminal, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	peer, socket, err := split(p[0], p[1])
	if err != nil {
		return nil, err
	}
	return &terminal{socket: socket, peer: peer}, nil
}

// receive waits for the master. It closes the socket.
func (t *terminal) receive(ctx context.Context) (int, error) {
	defer func() { _ = t.socket.Close() }() // nothing more is expected from it
	// With our copy of the runtime's end open, the stream would not end when the runtime does.
	_ = t.peer.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, consoleTimeout,
		fmt.Errorf("none came within %v: %w", consoleTimeout, context.DeadlineExceeded))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = t.socket.file.SetReadDeadline(time.Unix(1, 0)) }) // ends the read below
	defer stop()

	var (
		fds  []int
		rerr error
	)
	err := t.socket.conn.Read(func(fd uintptr) bool {
		fds, rerr = receiveFDs(int(fd))
		return !errors.Is(rerr, unix.EAGAIN)
	})
	switch {
	case ctx.Err() != nil && err != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("%w: %w", interrupted(err), errdefs.ErrFailedPrecondition) // by Close
	default:
		err = rerr
	}
	if err == nil {
		err = checkMaster(fds)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd) // not ours, and not what was asked for
		}
		return -1, fmt.Errorf("receive the terminal from the runtime: %w", err)
	}
	return fds[0], nil
}

// maxFDs is how many descriptors are received. The kernel closes any more.
const maxFDs = 8

// receiveFDs reads one message. Its bytes, the terminal's name, do not matter.
func receiveFDs(socket int) ([]int, error) {
	var name [4096]byte // libcontainer's limit, internal/cmsg
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, oobn, _, _, err := unix.Recvmsg(socket, name[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	if n == 0 && oobn == 0 {
		return nil, fmt.Errorf("it closed the console socket without sending one: %w", errdefs.ErrFailedPrecondition)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, os.NewSyscallError("parse control message", err)
	}
	var fds []int
	for _, m := range messages {
		rights, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // another kind of message carries no descriptors
		}
		fds = append(fds, rights...)
	}
	return fds, nil
}

// checkMaster refuses anything but one master of a pseudo-terminal, since the sender runs inside the container.
func checkMaster(fds []int) error {
	if len(fds) != 1 {
		return fmt.Errorf("got %d descriptors, want 1: %w", len(fds), errdefs.ErrInvalidArgument)
	}
	if _, err := unix.IoctlGetInt(fds[0], unix.TIOCGPTN); err != nil { // only masters have a number
		return fmt.Errorf("not a master of a pseudo-terminal: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	return nil
}

// Close closes the sockets and the master. It is called with Streams.mu held.
func (t *terminal) Close() error {
	if t == nil {
		return nil
	}
	return closeAll(t.socket, t.peer, t.master)
}

// resize sets the size, or keeps it for copyTerminal. It is called with Streams.mu held.
func (t *terminal) resize(size *unix.Winsize) error {
	if t.master == nil {
		t.size = size
		return nil
	}
	var serr error
	err := t.master.conn.Control(func(fd uintptr) { serr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	switch {
	case err != nil:
		return errClosed(fmt.Sprintf("resize to %dx%d", size.Col, size.Row))
	case serr != nil:
		return fmt.Errorf("resize to %dx%d: %w", size.Col, size.Row, serr)
	}
	return nil
}

// terminalInput is the sink of stdin with a terminal.
type terminalInput struct {
	master *pipeEnd
	last   byte // last byte written
}

func (t *terminalInput) write(b []byte, written func(int)) error {
	if err := t.master.write(b, written); err != nil {
		return err
	}
	t.last = b[len(b)-1]
	return nil
}

// end types the end-of-file character if the terminal is in line mode, since a terminal has no other end of input. An
// unfinished line takes one more, which sends the line (termios(3), VEOF). The master stays open for output.
func (t *terminalInput) end(context.Context) error {
	var typed []byte
	// Fails only when the master is closed, and then nobody reads.
	_ = t.master.conn.Control(func(fd uintptr) {
		tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS) // of a master: the settings of the terminal
		if err == nil && tio.Lflag&unix.ICANON != 0 {
			typed = append(typed, tio.Cc[unix.VEOF])
			if t.last != 0 && t.last != '\n' {
				typed = append(typed, tio.Cc[unix.VEOF])
			}
		}
	})
	_ = t.master.write(typed, func(int) {}) // as above
	return nil
}

// Close leaves the master to the output's copier.
func (t *terminalInput) Close() error { return nil }
