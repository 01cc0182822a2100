// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Drain waits, after the process has exited, until every output has ended and what was written is delivered.
//
// Where other processes hold an output, such as a daemon that an exec left behind, the end may never come. What they
// write is copied until ctx ends. ctx also bounds how long a reader may be slow or away.
//
// If ctx ends, Drain returns nil if all that was there at the exit or at the last Mark is delivered. Otherwise the
// error names the stream, what is left and how long it waited; likewise after Close, which discards the rest and ends a
// logging binary without waiting for it to read. It is an error too if a sink refused bytes, as on a full disk, or if
// nobody came to read within Config.KeepUnread.
func (s *Streams) Drain(ctx context.Context) error {
	start := time.Now()
	if s.keepUnread > 0 {
		defer time.AfterFunc(s.keepUnread, s.giveUpUnread).Stop()
	}
	copiers := s.outputCopiers()
	for _, c := range copiers {
		c.setMark(true)
	}
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

// giveUpUnread abandons the outputs that have no reader. Processes that hold them can write on, to nobody.
func (s *Streams) giveUpUnread() {
	s.release(fmt.Errorf("nobody came within %v: %w", s.keepUnread, errdefs.ErrDataLoss))
	for _, o := range s.outputs {
		if o, ok := o.(interface{ abandon() }); ok { // its reader may be away
			o.abandon()
		}
	}
}

// Mark records how much is in the outputs now, for DrainMayStop and Drain.
func (s *Streams) Mark() {
	for _, c := range s.outputCopiers() {
		c.setMark(false)
	}
}

// DrainMayStop reports whether Drain waits only for last bytes in fifos that nobody has open to read or, with held, for
// outputs that other processes hold and of which all is delivered that was there at the last Mark.
func (s *Streams) DrainMayStop(held bool) bool {
	for _, c := range s.outputCopiers() {
		if !c.mayStop(held) {
			return false
		}
	}
	return true
}

// outputCopiers returns the copiers of the outputs.
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
	fifo, ok := c.to.(*fifoOutput)
	return ok && fifo.unread() > 0
}

// drainError says what became of the output of c. If it has not ended, cause is why nobody waits any longer.
func (c *copier) drainError(cause error, waited time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost > 0:
		return fmt.Errorf("drain %s: %d bytes could not be written: %w", c.name, c.lost, errdefs.ErrDataLoss)
	case c.cut:
		return fmt.Errorf("drain %s: closed after %v: %w", c.name, waited, errdefs.ErrAborted)
	case c.unread != nil:
		return fmt.Errorf("drain %s: %w", c.name, c.unread)
	case c.done:
		return nil
	case c.eof:
		return fmt.Errorf("drain %s: the last bytes have no reader after %v: %w", c.name, waited, cause)
	case c.written < c.mark:
		return fmt.Errorf("drain %s: %d bytes and what is in the pipe are not handed on after %v: %w",
			c.name, c.taken-c.written, waited, cause)
	}
	return nil // held by another process
}

// setMark sets the mark to all that is in the source now. exited says that the process is gone, which is the end of a
// terminal; then the terminal is read once more.
func (c *copier) setMark(exited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exited = c.exited || exited
	if c.terminal {
		c.mark = math.MaxInt64                           // it has more buffers than it counts here
		_ = c.from.file.SetReadDeadline(time.Unix(1, 0)) // long past: interrupts a read; fails only when c has ended
		return
	}
	// Control fails when c has ended, which says enough.
	_ = c.from.conn.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), fionread); err == nil {
			c.mark = c.taken + int64(n)
		}
	})
}
