// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
	socket *net.UnixConn // ours
	peer   *os.File      // the runtime's
}

func newTerminal() (*terminal, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(p[1]), "console socket")
	defer func() { _ = ours.Close() }() // conn is a duplicate
	peer := os.NewFile(uintptr(p[0]), "runtime's end")
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, errors.Join(err, peer.Close())
	}
	return &terminal{socket: conn.(*net.UnixConn), peer: peer}, nil
}

// receive waits for the master. It closes the socket.
func (t *terminal) receive(ctx context.Context) (*pipeEnd, error) {
	defer func() { _ = t.socket.Close() }() // nothing more is expected from it
	// With our copy of the runtime's end open, the stream would not end when the runtime does.
	_ = t.peer.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, consoleTimeout,
		fmt.Errorf("none came within %v: %w", consoleTimeout, context.DeadlineExceeded))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = t.socket.SetReadDeadline(time.Unix(1, 0)) }) // ends the read below
	defer stop()

	fds, err := receiveFDs(t.socket)
	switch {
	case ctx.Err() != nil && err != nil:
		err = context.Cause(ctx)
	case errors.Is(err, net.ErrClosed):
		err = fmt.Errorf("%w: %w", os.ErrClosed, errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		err = checkMaster(fds)
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd) // not ours, and not what was asked for
		}
		return nil, fmt.Errorf("receive the terminal from the runtime: %w", err)
	}
	return newPipeEnd(fds[0], "terminal"), nil
}

// maxFDs is how many descriptors are received. The kernel closes any others.
const maxFDs = 8

// receiveFDs reads one message. Its bytes, the terminal's name, do not matter.
func receiveFDs(socket *net.UnixConn) ([]int, error) {
	var name [4096]byte // libcontainer's limit, internal/cmsg
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, oobn, _, _, err := socket.ReadMsgUnix(name[:], oob)
	if errors.Is(err, io.EOF) || err == nil && n == 0 && oobn == 0 {
		return nil, fmt.Errorf("it closed the console socket without sending one: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, err
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

// Close closes the sockets.
func (t *terminal) Close() error {
	if t == nil {
		return nil
	}
	return closeAll(t.socket, t.peer)
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
	// This fails only when the master is closed, and then nobody reads.
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

// Started is called once, after the process was created. It closes the process's ends, receives the master of the
// terminal if there is one, and starts the copying of the outputs. It waits for the master until ctx ends or
// consoleTimeout. After an error nothing is copied, and the caller must still call Close.
func (s *Streams) Started(ctx context.Context) (err error) {
	s.mu.Lock()
	if s.started || s.closed {
		s.mu.Unlock()
		return fmt.Errorf("start copying the streams: already started or closed: %w", errdefs.ErrFailedPrecondition)
	}
	s.started = true
	// Otherwise our copies would keep the pipes from ever ending. The process may have reopened its pipe and keep it
	// locked: closing the end that it was given then waits for it.
	s.copying.Go(func() { // joined by Close
		for _, f := range s.child {
			_ = f.Close() // fails if it is nil or a Close was faster
		}
	})
	s.mu.Unlock()

	var master *pipeEnd
	if s.terminal != nil {
		if master, err = s.terminal.receive(ctx); err != nil {
			return err
		}
	}
	maxOutput := s.maxOutput
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(errClosed("start copying the streams"), master.Close())
	}
	outputs := s.outputs
	if master != nil {
		s.outPipes[0] = master // Close closes it from now on
		if outputs[0] == nil {
			outputs[0] = discard{} // somebody must read, or the process would block on a full terminal
		}
	}
	for i, out := range outputs {
		if out != nil {
			from := s.outPipes[i]
			c := &copier{
				name: outputNames[i], from: from, source: from, to: out, terminal: from == master, persistent: true,
				maxOutput: maxOutput,
			}
			s.copiers = append(s.copiers, c)
			s.copy(c)
		}
	}
	return nil
}

// OpenStdin starts the copying of stdin, for which a client that writes waits. It is called once, after Started, when
// State finds the process: nerdctl asks for the task at the end of its input, and sends no CloseIO if there is no task
// (pkg/taskutil, StdinCloser). After an error a process without a terminal sees the end of its stdin.
func (s *Streams) OpenStdin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.input == nil || s.closed {
		return nil
	}
	if err := s.input.open(); err != nil {
		return errors.Join(fmt.Errorf("stdin: %w", err), s.inPipe.Close())
	}
	var to sink = s.inPipe
	if s.terminal != nil {
		to = &terminalInput{master: s.outPipes[0]}
	}
	s.copy(&copier{name: "stdin", from: s.input.pipeEnd, source: s.input, to: to})
	return nil
}

// copy starts a copier. It is called with mu held and closed not set, so that Close waits for every goroutine.
func (s *Streams) copy(c *copier) {
	c.logger, c.kept, c.ended = s.logger, s.kept, make(chan struct{})
	s.copying.Go(c.run) // ends with its source or what it leads to, or in Close, which joins it
}

// CloseStdin lets the stdin of the process end. As with the runc shim, the process reads to the last byte that a client
// sends, and sees the end when every client has closed the fifo. Until CloseStdin, clients may come and go
// (containerd-shim-runc-v2/process/init.go, openStdin: CloseIO closes the shim's own writer). A terminal in line mode
// gets its end-of-file character. Before OpenStdin, the end is kept until then. Without stdin, and when called again,
// CloseStdin does nothing.
func (s *Streams) CloseStdin() error {
	if s.input == nil {
		return nil
	}
	s.mu.Lock()
	s.input.ended = true
	hold := s.input.hold
	s.mu.Unlock()
	return closeAll(hold)
}

// Resize sets the size of the terminal in characters. Without a terminal, before Started and after Close the error is
// errdefs.ErrFailedPrecondition.
func (s *Streams) Resize(width, height uint16) error {
	op := fmt.Sprintf("resize to %dx%d", width, height)
	if s.terminal == nil {
		return fmt.Errorf("%s: the process has no terminal: %w", op, errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithTimeout(context.Background(), resizeTimeout)
	defer cancel()
	select {
	case s.resizing <- struct{}{}:
	case <-ctx.Done():
		return errSizeLocked(op)
	}
	master, err := s.duplicateMaster(op)
	if err != nil {
		<-s.resizing
		return err
	}
	set := make(chan error, 1)
	go func() { // ends when the kernel answers, which a process that has the terminal can delay
		set <- unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
		_ = unix.Close(master) // nothing was written
		<-s.resizing
	}()
	select {
	case err = <-set:
	case <-ctx.Done():
		return errSizeLocked(op)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// resizeTimeout bounds how long the kernel may take to set the size of a terminal. A process that asks for the size
// keeps it locked while the kernel writes to the process's memory (drivers/tty/tty_io.c, tiocgwinsz), which may never
// become available (userfaultfd(2), FUSE).
const resizeTimeout = time.Second

func errSizeLocked(op string) error {
	return fmt.Errorf("%s: a process keeps the size of the terminal locked: %w", op, errdefs.ErrUnavailable)
}

// duplicateMaster returns a descriptor of the terminal that belongs to the caller and does not delay Close.
func (s *Streams) duplicateMaster(op string) (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return -1, errClosed(op)
	}
	master := s.outPipes[0]
	if master == nil {
		return -1, fmt.Errorf("%s: the process has not started: %w", op, errdefs.ErrFailedPrecondition)
	}
	if master.conn.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }) != nil {
		return -1, errClosed(op)
	}
	if err != nil {
		return -1, fmt.Errorf("%s: %w", op, err)
	}
	return fd, nil
}

func errClosed(op string) error {
	return fmt.Errorf("%s: the streams are closed: %w", op, errdefs.ErrFailedPrecondition)
}
