// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
)

// fionread is FIONREAD, which golang.org/x/sys has under its terminal name only.
const fionread = unix.TIOCINQ

// pipeEnd is a non-blocking file: the shim's end of a pipe or a fifo, a terminal's master, or an output file. It is
// read by raw calls inside conn, so that a waiting goroutine holds no buffer.
type pipeEnd struct {
	file *os.File
	conn syscall.RawConn
	name string // in errors

	pause *pause // of the Streams that write to it; nil: none
	rest  []byte // of a Write that is paused
}

// newPipeEnd takes over the non-blocking fd.
func newPipeEnd(fd int, name string) *pipeEnd {
	f := os.NewFile(uintptr(fd), name)
	conn, _ := f.SyscallConn() // fails only for a file that is nil
	return &pipeEnd{file: f, conn: conn, name: name}
}

func (p *pipeEnd) Close() error {
	if p == nil {
		return nil
	}
	return p.file.Close()
}

// Write implements sink. Unlike an os.File it waits for a stopped terminal, where the kernel writes nothing and
// reports no error.
func (p *pipeEnd) Write(b []byte) (n int, err error) {
	n, err = p.tryWrite(b)
	for errors.Is(err, os.ErrDeadlineExceeded) { // that of Streams.Freeze
		var more int
		_ = p.file.SetWriteDeadline(time.Time{}) // fails only if it is closed
		p.rest = b[n:]
		p.pause.leave()
		p.pause.enter()
		p.rest = nil
		more, err = p.tryWrite(b[n:])
		n += more
	}
	return n, err
}

func (p *pipeEnd) tryWrite(b []byte) (n int, err error) {
	waitErr := p.conn.Write(func(fd uintptr) bool {
		for n < len(b) {
			m, e := unix.Write(int(fd), b[n:])
			switch {
			case m > 0:
				n += m
			case e == nil, errors.Is(e, unix.EAGAIN):
				return false
			case !errors.Is(e, unix.EINTR):
				err = &os.PathError{Op: "write", Path: p.name, Err: e}
				return true
			}
		}
		return true
	})
	switch {
	case errors.Is(waitErr, os.ErrDeadlineExceeded):
		err = waitErr
	case waitErr != nil: // nameless, for a file that was closed
		err = os.ErrClosed
	}
	return n, err
}

func (p *pipeEnd) end(context.Context) error {
	_ = p.file.Close() // a late write error of a log file has no one to go to
	return nil
}

func ownOwner() idmap.Owner { return idmap.Owner{UID: os.Geteuid(), GID: os.Getegid()} }

// newPipe makes a pipe of which the process gets the end with the index: 0 for its stdin, 1 for an output. Only the
// shim's end is non-blocking.
func newPipe(o idmap.Owner, index int) (theirs *os.File, ours *pipeEnd, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if o != ownOwner() { // a shim without privileges may not even change to what is already there
		if err = unix.Fchown(p[0], o.UID, o.GID); err != nil { // both ends have one inode
			err = fmt.Errorf("give pipe to %d:%d: %w", o.UID, o.GID, err)
		}
	}
	if err == nil {
		err = os.NewSyscallError("fcntl", unix.SetNonblock(p[1-index], true))
	}
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(p[0]), unix.Close(p[1]))
	}
	return os.NewFile(uintptr(p[index]), "child's end"), newPipeEnd(p[1-index], "shim's end"), nil
}

func openFD(path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, mode)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}
