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

// Drain waits until every output has come to its end and what was written is
// handed on. It is to be called when the process has exited.
//
// Where other processes hold an output, such as a daemon that an exec left
// behind, the end may never come: how long they may is the caller's to say, by
// ctx, as it is how long a reader may be slow, or away and come back. Until then
// what they write is copied.
//
// Drain returns nil as well if, when ctx ended, all that was there at the exit
// or at the last Mark is handed on. Otherwise the error names the stream, what
// is left and how long it waited, and so it does when Close came; Close then
// throws the rest away, and ends a logging binary without waiting for it to
// read. An output whose sink refused bytes, as on a full disk, is an error too,
// and so is one that nobody came to read within Config.KeepUnread.
func (s *Streams) Drain(ctx context.Context) error {
	start := time.Now()
	if s.keepUnread > 0 {
		defer time.AfterFunc(s.keepUnread, s.letGo).Stop()
	}
	copiers := s.copied()
	for _, c := range copiers {
		c.look(true)
	}
	errs := make([]error, len(copiers))
	for i, c := range copiers {
		select {
		case <-c.ended:
		case <-ctx.Done():
		}
		errs[i] = c.verdict(context.Cause(ctx), time.Since(start).Round(time.Millisecond))
	}
	err := errors.Join(errs...)
	if err != nil && ctx.Err() != nil && s.binary != nil {
		s.binary.hurry()
	}
	return err
}

// letGo gives up the outputs that have no reader. Processes that hold them can
// write on, to nobody.
func (s *Streams) letGo() {
	s.release(fmt.Errorf("nobody came within %v: %w", s.keepUnread, errdefs.ErrDataLoss))
	for _, o := range s.outputs {
		if o, ok := o.(interface{ letGo() }); ok { // its reader may be away
			o.letGo()
		}
	}
}

// Mark takes note of all that is in the outputs now, for Settled and Drain.
func (s *Streams) Mark() {
	for _, c := range s.copied() {
		c.look(false)
	}
}

// Settled reports whether Drain may as well stop: whatever it still waits for
// are last bytes in fifos that nobody has open to read, or, with held, outputs
// that other processes hold and of which all that was there at the last Mark is
// handed on.
func (s *Streams) Settled(held bool) bool {
	for _, c := range s.copied() {
		if !c.settled(held) {
			return false
		}
	}
	return true
}

// copied are the copiers of the outputs.
func (s *Streams) copied() []*copier {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copiers
}

func (c *copier) settled(held bool) bool {
	select {
	case <-c.ended:
		return true
	default:
	}
	c.mu.Lock()
	eof, marked := c.eof, c.given >= c.mark
	c.mu.Unlock()
	if !eof {
		return held && marked
	}
	fifo, ok := c.to.(*fifoOutput)
	return ok && fifo.left() > 0
}

// verdict tells what became of the output of c when nobody waits for it any
// longer. cause is why, if it was not at its end.
func (c *copier) verdict(cause error, waited time.Duration) error {
	ended := false
	select {
	case <-c.ended:
		ended = true
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost > 0:
		return fmt.Errorf("drain %s: %d bytes could not be written: %w", c.name, c.lost, errdefs.ErrDataLoss)
	case c.cut:
		return fmt.Errorf("drain %s: closed after %v: %w", c.name, waited, errdefs.ErrAborted)
	case c.unread != nil:
		return fmt.Errorf("drain %s: %w", c.name, c.unread)
	case ended:
		return nil
	case c.eof:
		return fmt.Errorf("drain %s: the last bytes have no reader after %v: %w", c.name, waited, cause)
	case c.given < c.mark:
		return fmt.Errorf("drain %s: %d bytes and what is in the pipe are not handed on after %v: %w", c.name, c.taken-c.given, waited, cause)
	}
	return nil // held by another process
}

// look sets the mark to all that is in the source now. With exited, c learns
// that the process is gone and looks at its source with that knowledge: it is
// the end of a terminal.
func (c *copier) look(exited bool) {
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
