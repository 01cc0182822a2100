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

	"sandbox.internal/shim/pkg/unixfile"
)

// terminal is a terminal until its master is received. The master is read through Go's edge-triggered poller, like
// that of containerd/console: without a process that has the terminal open, a level-triggered poll would spin.
type terminal struct {
	socket *pipeEnd // ours
	peer   *os.File // the runtime's
}

func newTerminal() (*terminal, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	return &terminal{newPipeEnd(p[1], "console socket"), os.NewFile(uintptr(p[0]), "runtime's end")}, nil
}

// receive does not wait: the runtime has sent the master before it reports the process.
func (t *terminal) receive() (*pipeEnd, error) {
	defer t.Close() //nolint:errcheck // nothing more is expected from it
	fd, err := t.receiveFD()
	if err == nil {
		if err = checkMaster(fd); err != nil {
			_ = unix.Close(fd) // nothing was written
		}
	}
	if err != nil {
		return nil, fmt.Errorf("receive the terminal from the runtime: %w", err)
	}
	return newPipeEnd(fd, "terminal"), nil
}

// receiveFD reads one message with the terminal's name, and one descriptor: the kernel closes any others.
func (t *terminal) receiveFD() (master int, err error) {
	var name [4096]byte // libcontainer's limit, internal/cmsg
	oob := make([]byte, unix.CmsgLen(4))
	var oobn int
	_ = t.socket.conn.Control(func(fd uintptr) { // fails after Close: there is none then either
		_, oobn, _, _, _ = unix.Recvmsg(int(fd), name[:], oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	})
	messages, _ := unix.ParseSocketControlMessage(oob[:oobn]) // none in what cannot be parsed
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, fmt.Errorf("it sent none: %w", errdefs.ErrFailedPrecondition)
}

// checkMaster refuses any other file, since the sender runs inside the container.
func checkMaster(fd int) error {
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPTN); err != nil { // only masters have a number
		return fmt.Errorf("not a master of a pseudo-terminal: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return os.NewSyscallError("fcntl", unix.SetNonblock(fd, true))
}

func (t *terminal) Close() error {
	if t == nil {
		return nil
	}
	return errors.Join(t.socket.Close(), t.peer.Close())
}

type terminalInput struct {
	master *pipeEnd
	last   byte   // last byte written
	typing []byte // what a former program had left to type of the end; nil: it had not begun
}

func (t *terminalInput) Write(b []byte) (int, error) {
	t.last = b[len(b)-1]
	return t.master.Write(b)
}

// end types the end-of-file character if the terminal is in line mode, and twice after an unfinished line (termios(3),
// VEOF). The master stays open for output.
func (t *terminalInput) end(context.Context) error {
	typed := t.typing
	// This fails only when the master is closed, and then nobody reads.
	_ = t.master.conn.Control(func(fd uintptr) {
		tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS) // of a master: the settings of the terminal
		if typed == nil && err == nil && tio.Lflag&unix.ICANON != 0 {
			typed = append(typed, tio.Cc[unix.VEOF])
			if t.last != 0 && t.last != '\n' {
				typed = append(typed, tio.Cc[unix.VEOF])
			}
		}
	})
	_, _ = t.master.Write(typed) // as above, and while it is paused rest has what is not typed yet
	return nil
}

// Close leaves the master to the copier of the output.
func (t *terminalInput) Close() error { return nil }

// resizeTimeout bounds the kernel's setting of the size, which a process can keep locked by asking for it
// (drivers/tty/tty_io.c, tiocgwinsz).
const resizeTimeout = time.Second

// Resize sets the size of the terminal. Without one, before Started and after Close the error is
// errdefs.ErrFailedPrecondition.
func (s *Streams) Resize(width, height uint16) error {
	op := fmt.Sprintf("resize to %dx%d", width, height)
	s.mu.Lock()
	master := s.master
	s.mu.Unlock()
	if master == nil {
		return fmt.Errorf("%s: no terminal, or not started: %w", op, errdefs.ErrFailedPrecondition)
	}
	err := unixfile.Within(resizeTimeout, func() (err error) {
		s.resizing.Lock() // one call at a time takes a thread
		defer s.resizing.Unlock()
		closed := master.conn.Control(func(fd uintptr) {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
		})
		if closed != nil {
			return fmt.Errorf("%s: the streams are closed: %w", op, errdefs.ErrFailedPrecondition)
		}
		return os.NewSyscallError(op, err)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: a process keeps the size of the terminal locked: %w", op, errdefs.ErrUnavailable)
	}
	return err
}
