// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// sink is where a copier puts what it read.
type sink interface {
	// write hands all of b on and reports each part that went. It waits for
	// the reader as long as it takes, or until Close, which makes it return
	// os.ErrClosed.
	write(b []byte, given func(n int)) error
	// end is told that nothing more comes. It closes the sink, and returns
	// early when ctx ends. The error is what became of bytes that nobody took.
	end(ctx context.Context) error
	Close() error
}

// discard is the sink of a terminal without stdout.
type discard struct{}

func (discard) write(b []byte, given func(int)) error { given(len(b)); return nil }
func (discard) end(context.Context) error             { return nil }
func (discard) Close() error                          { return nil }

// bufferSize is the default capacity of a pipe: one read can empty it.
const bufferSize = 64 << 10

// buffers is a cache without state: which buffer comes makes no difference.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copier copies one stream.
type copier struct {
	name       string
	from       *pipeEnd
	to         sink
	pipe       *pipeEnd // of to, where both are pipes; used by run alone
	terminal   bool     // from is a terminal's master
	persistent bool     // go on after an error of the sink, so that the process does not block
	logger     *log.Entry
	kept       context.Context //nolint:containedctx // of the Streams, which bounds the end of the sink
	source     io.Closer       // from and what belongs to it
	ended      chan struct{}   // closed once, when run returns

	mu     sync.Mutex
	taken  int64 // bytes read
	given  int64 // bytes written or lost
	lost   int64 // bytes that the sink refused
	exited bool  // the process is gone
	eof    bool  // the source came to its end
	cut    bool  // Close came before the end
	mark   int64 // what Mark found was there is handed on when so many bytes are given
	unread error // of the sink's end
}

// run copies until the source ends, a sink that is not persistent fails, or Close.
func (c *copier) run() {
	defer close(c.ended)
	for {
		buf, n, err := c.take()
		if err != nil {
			c.finish(err)
			break
		}
		err = c.to.write(buf[:n], c.give)
		buffers.Put(buf)
		if err != nil && !c.bear(err) {
			c.finish(err)
			break
		}
	}
	_ = c.source.Close() // nothing is lost by closing what was read from
	err := c.to.end(c.kept)
	c.mu.Lock()
	c.unread = err
	c.mu.Unlock()
}

// take waits for bytes and reads them, but for those that it could splice. The
// error is io.EOF at the end.
func (c *copier) take() (*[bufferSize]byte, int, error) {
	for {
		var (
			buf  *[bufferSize]byte
			n    int
			rerr error
		)
		err := c.from.conn.Read(func(fd uintptr) bool {
			for c.splice(int(fd)) {
			}
			buf, n, rerr = c.tryRead(int(fd))
			return buf != nil || rerr != nil
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			// look asks for another one. Deadlines that come after
			// this line interrupt the next read, so none is missed.
			if err := c.from.file.SetReadDeadline(time.Time{}); err != nil {
				return nil, 0, err
			}
		case err != nil:
			return nil, 0, interrupted(err)
		default:
			return buf, n, rerr
		}
	}
}

// tryRead reads once. With neither bytes nor an error there was nothing to
// read. The lock makes the bytes in the pipe and those counted here one sum at
// any time; the descriptor is non-blocking, so it is never held for long.
func (c *copier) tryRead(fd int) (*[bufferSize]byte, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := buffers.Get().(*[bufferSize]byte)
	n, err := unix.Read(fd, buf[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, buf[:])
	}
	if n > 0 {
		c.taken += int64(n)
		return buf, n, nil
	}
	buffers.Put(buf)
	switch {
	case err == nil:
		return nil, 0, io.EOF
	case c.terminal && c.exited && (errors.Is(err, unix.EIO) || errors.Is(err, unix.EAGAIN)):
		// A terminal ends with its process, whoever else has it open, as with the
		// runc shim (process/exec.go, setExited). The kernel hands on all that was
		// written before it says that there is nothing (drivers/tty/n_tty.c, n_tty_read).
		return nil, 0, io.EOF
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EIO) && c.terminal:
		// A master answers EIO while nobody has the terminal open. A living
		// process may close it and open it again, as systemd does, so that is
		// not the end; the poller tells when there is something to read again.
		return nil, 0, nil
	}
	return nil, 0, os.NewSyscallError("read", err)
}

// give counts what the sink took.
func (c *copier) give(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given += int64(n)
}

// bear tells whether to go on after an error of the sink: a full disk must not
// stop the process. What the sink did not take is lost, and said once.
func (c *copier) bear(err error) bool {
	if !c.persistent || errors.Is(err, os.ErrClosed) {
		return false
	}
	c.mu.Lock()
	first := c.lost == 0
	c.lost += c.taken - c.given
	c.given = c.taken
	c.mu.Unlock()
	if first {
		c.logger.WithError(err).WithField("stream", c.name).Error("output of the process is lost")
	}
	return true
}

// finish records how the copying ended.
func (c *copier) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, io.EOF) {
		c.eof = true
		return
	}
	c.cut = true
	if !errors.Is(err, os.ErrClosed) && !errors.Is(err, unix.EPIPE) { // EPIPE: the process closed its stdin
		c.logger.WithError(err).WithField("stream", c.name).Error("copying ended early")
	}
}
