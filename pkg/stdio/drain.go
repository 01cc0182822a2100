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

// grace is how long output that other processes hold may still come to its end
// after the process is gone: children that end with it have their word, and who
// reads sees the end although a daemon was left behind. dockerd waits as long.
const grace = 2 * time.Second

// Drain waits until what the process wrote is handed on. It is to be called
// when the process has exited, since then all that it wrote is in the pipes.
// How long a reader may take is the caller's to say, by ctx: it may be slow, or
// away and come back.
//
// Drain returns nil as soon as every output has come to its end. Where other
// processes still hold an output, the end may never come: then it returns nil
// once all that was in the pipe when it was called is handed on (for a terminal:
// once that was found empty) and the grace, two seconds, has passed. What such
// processes write later is still copied, until Close.
//
// It returns an error that names the stream, what is left and how long it
// waited when ctx ended or Close came; Close then throws the rest away, and ends
// a logging binary without waiting for it to read. An output whose sink refused
// bytes, as on a full disk, is an error as well.
func (s *Streams) Drain(ctx context.Context) error {
	s.mu.Lock()
	copiers := s.copiers
	s.mu.Unlock()

	d := drain{start: time.Now()}
	reached := make([]chan struct{}, len(copiers))
	for i, c := range copiers { // all before the first wait: the bounds run for all at once
		reached[i] = c.processExited()
	}
	errs := make([]error, len(copiers))
	for i, c := range copiers {
		errs[i] = d.wait(ctx, c, reached[i])
	}
	graceCtx, cancel := context.WithTimeout(ctx, s.grace)
	defer cancel()
	for i, c := range copiers {
		if errs[i] == nil { // what became of another stream does not matter to this one
			errs[i] = d.settle(ctx, graceCtx, c)
		}
	}
	if ctx.Err() != nil && s.binary != nil {
		s.binary.hurry()
	}
	return errors.Join(errs...)
}

// Abandoned tells whether all that Drain still waits for are last bytes in fifos
// that nobody has open to read.
func (s *Streams) Abandoned() bool {
	s.mu.Lock()
	copiers := s.copiers
	s.mu.Unlock()
	pending := false
	for _, c := range copiers {
		select {
		case <-c.ended:
			continue
		default:
		}
		fifo, ok := c.to.(*fifoOutput)
		if !ok || !c.atEnd() || fifo.left() == 0 {
			return false
		}
		pending = true
	}
	return pending
}

type drain struct {
	start time.Time
}

// wait returns when c has handed on all up to its mark.
func (d drain) wait(ctx context.Context, c *copier, reached <-chan struct{}) error {
	select {
	case <-reached:
	case <-c.ended:
	case <-ctx.Done():
	}
	select { // again, since another stream may have used up the time
	case <-reached:
		return nil
	case <-c.ended:
		return d.verdict(c)
	default:
		return d.failed(c, context.Cause(ctx))
	}
}

// settle gives c the grace to come to its end. At the end already, it may have
// its last bytes in a fifo that nobody reads; then it is given until ctx ends.
func (d drain) settle(ctx, grace context.Context, c *copier) error {
	select {
	case <-c.ended:
		return d.verdict(c)
	case <-grace.Done():
	}
	if c.atEnd() {
		select {
		case <-c.ended:
		case <-ctx.Done():
		}
	}
	return d.verdict(c)
}

// verdict tells what became of the output of c when there is nothing more to
// wait for.
func (d drain) verdict(c *copier) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost > 0:
		return fmt.Errorf("drain %s: %d bytes could not be written: %w", c.name, c.lost, errdefs.ErrDataLoss)
	case c.cut:
		return fmt.Errorf("drain %s: closed after %v: %w", c.name, time.Since(d.start).Round(time.Millisecond), errdefs.ErrAborted)
	}
	select {
	case <-c.ended:
		return nil
	default:
	}
	if c.eof {
		return fmt.Errorf("drain %s: the last bytes have no reader after %v: %w",
			c.name, time.Since(d.start).Round(time.Millisecond), context.DeadlineExceeded)
	}
	return nil // held by another process
}

func (d drain) failed(c *copier, cause error) error {
	c.mu.Lock()
	held := c.taken - c.given
	c.mu.Unlock()
	return fmt.Errorf("drain %s: %d bytes and what is in the pipe are not handed on after %v: %w",
		c.name, held, time.Since(d.start).Round(time.Millisecond), cause)
}

// processExited makes c look at its source once more, with the knowledge that
// the process is gone. The channel is closed when all that is there now is
// handed on.
func (c *copier) processExited() chan struct{} {
	m := mark{at: math.MaxInt64, reached: make(chan struct{})}
	c.mu.Lock()
	c.exited = true
	if !c.terminal {
		// A terminal has more buffers than it counts here; for it only an empty
		// read tells. Control fails when c has ended, which says enough.
		_ = c.from.conn.Control(func(fd uintptr) {
			if n, err := unix.IoctlGetInt(int(fd), fionread); err == nil {
				m.at = c.taken + int64(n)
			}
		})
	}
	c.marks = append(c.marks, m)
	c.passLocked(c.eof)
	c.mu.Unlock()
	_ = c.from.file.SetReadDeadline(time.Unix(1, 0)) // long past; fails only when c has ended
	return m.reached
}

// atEnd tells whether the source has come to its end.
func (c *copier) atEnd() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.eof
}
