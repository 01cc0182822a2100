// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// sink is where a copier writes what it read.
type sink interface {
	// write writes all of b and reports each part that was written. It blocks until the reader has room, or until
	// Close, which makes it return os.ErrClosed.
	write(b []byte, written func(n int)) error
	// end closes the sink when its reader has everything, or when ctx ends. The error says which bytes nobody read.
	end(ctx context.Context) error
	Close() error
}

// discard is the sink of a terminal without stdout.
type discard struct{}

func (discard) write(b []byte, written func(int)) error { written(len(b)); return nil }
func (discard) end(context.Context) error               { return nil }
func (discard) Close() error                            { return nil }

// bufferSize is the default capacity of a pipe: one read can empty it.
const bufferSize = 64 << 10

// buffers is a cache of interchangeable buffers, not state.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copier copies one stream.
type copier struct {
	name       string
	from       *pipeEnd
	to         sink
	terminal   bool // from is a terminal's master
	persistent bool // continue after an error of the sink, so that the process does not block
	maxOutput  int64
	logger     *log.Entry
	kept       context.Context //nolint:containedctx // of the Streams, which bounds the end of the sink
	source     io.Closer       // from and what belongs to it
	ended      chan struct{}   // closed once, when run returns

	// reading is held during each call that reads from the source or counts what is in it. A writer to a pipe can make
	// such a call wait: see the package documentation.
	reading sync.Mutex

	mu sync.Mutex
	// +checklocks:mu
	taken int64 // bytes read
	// +checklocks:mu
	written int64 // bytes written or lost
	// +checklocks:mu
	lost int64 // bytes that the sink refused
	// +checklocks:mu
	exited bool // the process has exited
	// +checklocks:mu
	eof bool // the source has ended
	// +checklocks:mu
	cut bool // Close came before the end
	// +checklocks:mu
	mark int64 // once this many bytes are written, all that Mark found is delivered
	// +checklocks:mu
	unread error // the error of the sink's end
	// +checklocks:mu
	done bool // the sink has ended
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
		err = c.to.write(c.withinLimit(buf[:n]), c.addWritten)
		buffers.Put(buf)
		if err != nil && !c.onWriteError(err) {
			c.finish(err)
			break
		}
	}
	_ = c.source.Close() // nothing is lost by closing what was read from
	err := c.to.end(c.kept)
	c.mu.Lock()
	c.unread, c.done = err, true
	c.mu.Unlock()
}

// take waits for bytes and reads them. The error is io.EOF at the end.
//
// They are copied, which gives 0.9 GB/s. splice(2) gives 1.2, but holds both pipes' locks at once, so a process that
// blocks its own pipe would also block containerd's, and containerd could not even be killed.
func (c *copier) take() (*[bufferSize]byte, int, error) {
	for {
		var (
			buf  *[bufferSize]byte
			n    int
			rerr error
		)
		err := c.from.conn.Read(func(fd uintptr) bool {
			buf, n, rerr = c.tryRead(int(fd))
			return buf != nil || rerr != nil
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			// setMark wants another read. A deadline that it sets after this line interrupts the next one, so none is
			// missed. This fails only when the file is closed, as the next read finds.
			_ = c.from.file.SetReadDeadline(time.Time{})
		case err != nil:
			return nil, 0, interrupted(err)
		default:
			return buf, n, rerr
		}
	}
}

// tryRead reads once. Neither bytes nor an error means that there was nothing to read. With reading held, the sum of
// the bytes in the pipe and of those counted here is always consistent. The descriptor is non-blocking, but the pipe
// has a lock.
func (c *copier) tryRead(fd int) (*[bufferSize]byte, int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	exited := c.exited // before the read, which then finds all that was written
	c.mu.Unlock()
	buf := buffers.Get().(*[bufferSize]byte)
	n, err := unix.Read(fd, buf[:]) // EINTR is for calls that wait
	if n > 0 {
		c.mu.Lock()
		c.taken += int64(n)
		c.mu.Unlock()
		return buf, n, nil
	}
	buffers.Put(buf)
	switch {
	case err == nil:
		return nil, 0, io.EOF
	case c.terminal && exited && (errors.Is(err, unix.EIO) || errors.Is(err, unix.EAGAIN)):
		// A terminal ends with its process, whoever else has it open, as with the runc shim (process/exec.go,
		// setExited). The kernel returns all that was written before either error (drivers/tty/n_tty.c, n_tty_read).
		return nil, 0, io.EOF
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EIO) && c.terminal:
		// A master returns EIO while nobody has the terminal open. This is not the end: a running process may open it
		// again, as systemd does. The poller then reports when there is something to read.
		return nil, 0, nil
	}
	return nil, 0, os.NewSyscallError("read", err)
}

func (c *copier) addWritten(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written += int64(n)
}

// onWriteError reports whether to continue after an error of the sink: a full disk must not stop the process. Bytes
// that the sink refused are lost; the first loss is logged.
func (c *copier) onWriteError(err error) bool {
	if !c.persistent || errors.Is(err, os.ErrClosed) {
		return false
	}
	c.mu.Lock()
	first := c.lost == 0
	c.lost += c.taken - c.written
	c.written = c.taken
	c.mu.Unlock()
	if first {
		c.logger.WithError(err).WithField("stream", c.name).Error("output of the process is lost")
	}
	return true
}

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

// Drain waits, after the process has exited, until every output has ended and what was written is delivered.
//
// An output that other processes hold, such as a daemon that an exec left behind, may never end. Drain copies it until
// ctx ends. ctx also bounds how long a reader may be slow or absent. For a pipe whose lock somebody keeps, Drain waits
// up to lookTimeout longer.
//
// When ctx ends, Drain returns nil if everything written before the exit or the last Mark is delivered. Otherwise the
// error names the stream, the number of bytes left and the time waited; likewise after Close, which discards the rest.
// Bytes in the pipe of a logging binary count as delivered: Close gives the binary time to read them. It is also an
// error if a sink refused bytes, as on a full disk, or if no reader came within Config.KeepUnread.
func (s *Streams) Drain(ctx context.Context) error {
	start := time.Now()
	if s.keepUnread > 0 {
		defer time.AfterFunc(s.keepUnread, s.giveUpUnread).Stop()
	}
	copiers := s.outputCopiers()
	look, cancel := context.WithTimeout(context.Background(), lookTimeout) // even if ctx has ended
	defer cancel()
	forEach(copiers, func(c *copier) { c.setMark(look, true) })
	errs := make([]error, len(copiers))
	for i, c := range copiers {
		select {
		case <-c.ended:
		case <-ctx.Done():
		}
		errs[i] = c.drainError(context.Cause(ctx), time.Since(start).Round(time.Millisecond))
	}
	err := errors.Join(errs...)
	if err != nil && ctx.Err() != nil && s.binary != nil {
		s.binary.expire()
	}
	return err
}

// giveUpUnread abandons the outputs that have no reader. Processes that hold them can keep writing, but nobody reads
// it.
func (s *Streams) giveUpUnread() {
	s.release(fmt.Errorf("nobody came within %v: %w", s.keepUnread, errdefs.ErrDataLoss))
	for _, o := range s.outputs {
		if o, ok := o.(*fifoOutput); ok { // its reader may be away
			o.abandon()
		}
	}
}

// Mark records how much is in the outputs now, for DrainMayStop and Drain. An output that cannot be counted before ctx
// ends counts as not delivered.
func (s *Streams) Mark(ctx context.Context) {
	forEach(s.outputCopiers(), func(c *copier) { c.setMark(ctx, false) })
}

// DrainMayStop reports whether Drain waits only for the last bytes in fifos that nobody has open for reading or, with
// held, for a logging binary that has everything, or for outputs that other processes hold and whose content at the
// last Mark is delivered.
func (s *Streams) DrainMayStop(held bool) bool {
	for _, c := range s.outputCopiers() {
		if !c.mayStop(held) {
			return false
		}
	}
	return true
}

func (s *Streams) outputCopiers() []*copier {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copiers
}

func (c *copier) mayStop(held bool) bool {
	c.mu.Lock()
	done, eof, marked := c.done, c.eof, c.written >= c.mark
	c.mu.Unlock()
	if done || !eof {
		return done || held && marked
	}
	switch to := c.to.(type) {
	case *fifoOutput:
		return to.unread() > 0
	case *loggerInput:
		return held
	}
	return false
}

// drainError returns the error of Drain for the output of c, or nil. cause is the reason to give up on an output that
// has not ended.
func (c *copier) drainError(cause error, waited time.Duration) error {
	_, isLogger := c.to.(*loggerInput)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost > 0:
		return fmt.Errorf("drain %s: %d bytes could not be written: %w", c.name, c.lost, errdefs.ErrDataLoss)
	case c.cut:
		return fmt.Errorf("drain %s: closed after %v: %w", c.name, waited, errdefs.ErrAborted)
	case c.unread != nil:
		return fmt.Errorf("drain %s: %w", c.name, c.unread)
	case c.done, c.eof && isLogger:
		return nil
	case c.eof:
		return fmt.Errorf("drain %s: the last bytes have no reader after %v: %w", c.name, waited, cause)
	case c.written < c.mark:
		return fmt.Errorf("drain %s: %d bytes and what is in the pipe are not handed on after %v: %w",
			c.name, c.taken-c.written, waited, cause)
	}
	return nil // held by another process
}

// setMark sets the mark to the end of the source's present content. exited means that the process has exited, which
// ends a terminal; the terminal is then read once more.
func (c *copier) setMark(ctx context.Context, exited bool) {
	known := false
	if !c.terminal {
		_, known = c.produced(ctx, true)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exited = c.exited || exited
	if known {
		return
	}
	c.mark = math.MaxInt64 // unknown; a terminal has more buffers than it counts
	if c.terminal {
		_ = c.from.file.SetReadDeadline(time.Unix(1, 0)) // long past: interrupts a read; fails only when c has ended
	}
}
