// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// sink takes the bytes of a copier.
type sink interface {
	// Write blocks until the reader has room. Close makes it return os.ErrClosed.
	io.WriteCloser
	// end closes the sink when its reader has everything, or when ctx ends. The error names bytes that nobody read.
	end(ctx context.Context) error
}

const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

const unknown = math.MaxInt64

const (
	copying = iota
	ending  // nothing more is read; the sink may wait for its reader
	ended
)

type copier struct {
	name      string
	from      *pipeEnd
	to        sink
	output    bool // continue after an error of the sink, so that the process does not block
	terminal  bool // from is a terminal's master
	maxOutput int64
	logger    *log.Entry
	kept      context.Context //nolint:containedctx // of the Streams, which bounds the end of the sink
	source    io.Closer       // from and what belongs to it
	ended     chan struct{}   // closed once, when run returns
	pause     *pause          // of the Streams
	before    func()          // is called before bytes are passed on; nil for nothing
	rest      []byte          // bytes that the former program had taken and not passed on

	reading sync.Mutex   // held during each read and count of the source, so that taken and the count are consistent
	taken   atomic.Int64 // bytes read
	written atomic.Int64 // bytes that the sink took, refused or was spared
	lost    atomic.Int64 // bytes that the sink refused
	marked  sync.Once
	mark    atomic.Int64 // once this many bytes are written, all that DrainMayStop found is delivered
	exited  atomic.Bool  // the process has exited
	phase   atomic.Int32
	cut     error // why copying ended, nil for the end of the source; set before phase is ending
	unread  error // the error of the sink's end; set before phase is ended
}

// run copies until the source ends, the process closes its stdin, or Close.
func (c *copier) run() {
	defer close(c.ended)
	c.pause.enter()
	defer c.pause.leave()
	if c.phase.Load() == copying {
		c.cut = c.copy()
		c.phase.Store(ending)
		if c.cut != nil && !errors.Is(c.cut, os.ErrClosed) && !errors.Is(c.cut, unix.EPIPE) { // EPIPE: a stdin was closed
			c.logger.WithError(c.cut).Error("copying ended early")
		}
		_ = c.source.Close() // nothing is lost by closing what was read from
	}
	c.unread = c.to.end(c.kept)
	c.phase.Store(ended)
}

func (c *copier) copy() error {
	if left := c.taken.Load() - c.written.Load(); left > 0 {
		if err := c.pass(c.rest, left); err != nil {
			return err
		}
	}
	for {
		buf, n, err := c.take()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if c.before != nil {
			c.before()
		}
		over := int64(0)
		if c.maxOutput > 0 {
			over = min(max(c.taken.Load()-c.maxOutput, 0), int64(n))
		}
		err = c.pass(buf[:int64(n)-over], int64(n))
		buffers.Put(buf)
		if err != nil {
			return err
		}
	}
}

// pass writes b, which is what is kept of n bytes.
func (c *copier) pass(b []byte, n int64) error {
	done, err := c.to.Write(b)
	if err != nil {
		if !c.output || errors.Is(err, os.ErrClosed) {
			return err
		}
		if c.lost.Load() == 0 { // a full disk must not stop the process
			c.logger.WithError(err).Error("output of the process is lost")
		}
		c.lost.Add(int64(len(b) - done))
	}
	c.written.Add(n)
	return nil
}

// take waits for bytes and reads them. The error is io.EOF at the end. splice(2) is a third faster, but holds the
// locks of both pipes: a process that blocks its own pipe would block containerd.
func (c *copier) take() (buf *[bufferSize]byte, n int, err error) {
	for {
		waitErr := c.from.conn.Read(func(fd uintptr) bool {
			buf, n, err = c.tryRead(int(fd))
			return buf != nil || err != nil
		})
		if !errors.Is(waitErr, os.ErrDeadlineExceeded) {
			if waitErr != nil {
				err = os.ErrClosed
			}
			return buf, n, err
		}
		_ = c.from.file.SetReadDeadline(time.Time{}) // setExited wants another read, or Streams.Freeze none
		c.pause.leave()
		c.pause.enter()
	}
}

// tryRead reads once, and returns neither bytes nor an error if there was nothing to read.
func (c *copier) tryRead(fd int) (*[bufferSize]byte, int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	exited := c.exited.Load() // before the read, which then finds all that was written
	buf := buffers.Get().(*[bufferSize]byte)
	n, err := unix.Read(fd, buf[:]) // EINTR is for calls that wait
	if n > 0 {
		c.taken.Add(int64(n))
		return buf, n, nil
	}
	buffers.Put(buf)
	nothing := errors.Is(err, unix.EAGAIN) || c.terminal && errors.Is(err, unix.EIO)
	switch {
	case err == nil, nothing && c.terminal && exited:
		// A terminal ends with its process, as with the runc shim (process/exec.go, setExited). The kernel returns all that
		// was written before either error (drivers/tty/n_tty.c, n_tty_read).
		return nil, 0, io.EOF
	case nothing: // EIO while nobody has the terminal open, which a process may open again, as systemd does
		return nil, 0, nil
	}
	return nil, 0, os.NewSyscallError("read", err)
}

// setExited ends a terminal after another read.
func (c *copier) setExited() {
	c.exited.Store(true)
	if c.terminal {
		_ = c.from.file.SetReadDeadline(longAgo) // interrupts a read; fails only when c has ended
	}
}

var longAgo = time.Unix(1, 0)

// produced returns how much was taken from the source plus what is in it, except for a terminal, which has more
// buffers. It waits while a process keeps the pipe locked.
func (c *copier) produced() int64 {
	c.reading.Lock()
	defer c.reading.Unlock()
	left := 0
	_ = c.from.conn.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), fionread); err == nil && !c.terminal {
			left = n
		}
	})
	return c.taken.Load() + int64(left)
}
