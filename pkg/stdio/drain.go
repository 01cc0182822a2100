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

// bounds are how long Drain waits, and for what.
type bounds struct {
	stall time.Duration // for a reader that takes nothing at all
	limit time.Duration // for a reader that takes a little now and then
	grace time.Duration // for ends and readers that may still come
}

// CRI gives Delete 10 s in all (contract of internal/cri/server, event
// time-out), so a reader that is gone must cost less. The limit is longer: who
// reads at all shall get everything, and what a dead process left is little, at
// most a full pipe. The grace lets a grandchild that ends with the process have
// its word, and the reader of a process that ran for a millisecond arrive.
var defaultBounds = bounds{stall: 5 * time.Second, limit: time.Minute, grace: 500 * time.Millisecond}

// Drain waits until what the process wrote is handed on. It is to be called
// when the process has exited, since then all that it wrote is in the pipes.
//
// It returns nil as soon as every output has come to its end. Where other
// processes still hold an output, the end may never come: then Drain returns
// nil once all that was in the pipe when Drain was called is handed on (for a
// terminal: once the terminal was found empty) and the grace, half a second,
// has passed. What such processes write later is still copied, until Close.
//
// It returns an error that names the stream, what is left and how long it
// waited when a reader took nothing for 5 s, when one minute has passed, when
// ctx ended or Close came; and when all is in a fifo that has no reader after
// the grace. Close then throws the rest away. An output whose sink refused
// bytes, as on a full disk, is an error as well.
func (s *Streams) Drain(ctx context.Context) error {
	s.mu.Lock()
	copiers := s.copiers
	s.mu.Unlock()

	d := drain{bounds: s.bounds, start: time.Now()}
	ctx, cancel := context.WithTimeoutCause(ctx, d.limit, context.DeadlineExceeded)
	defer cancel()
	reached := make([]chan struct{}, len(copiers))
	for i, c := range copiers { // all before the first wait: the bounds run for all at once
		reached[i] = c.processExited()
	}
	var errs []error
	for i, c := range copiers {
		errs = append(errs, d.wait(ctx, c, reached[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	grace, cancel := context.WithTimeout(ctx, d.grace)
	defer cancel()
	for _, c := range copiers {
		errs = append(errs, d.settle(grace, c))
	}
	return errors.Join(errs...)
}

type drain struct {
	bounds
	start time.Time
}

// wait returns when c has handed on all up to its mark.
func (d drain) wait(ctx context.Context, c *copier, reached <-chan struct{}) error {
	timer := time.NewTimer(d.stall)
	defer timer.Stop()
	for {
		select {
		case <-reached:
			return nil
		case <-c.ended:
			return d.verdict(c)
		case <-ctx.Done():
			return d.failed(c, context.Cause(ctx))
		case <-timer.C:
			left := d.stall - time.Since(c.lastProgress(d.start))
			if left <= 0 {
				return d.failed(c, fmt.Errorf("its reader took nothing for %v: %w", d.stall, context.DeadlineExceeded))
			}
			timer.Reset(left)
		}
	}
}

// settle gives c the grace to come to its end.
func (d drain) settle(grace context.Context, c *copier) error {
	select {
	case <-c.ended:
	case <-grace.Done():
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

// lastProgress is when a byte was last handed on, or since.
func (c *copier) lastProgress(since time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.progress.After(since) {
		return c.progress
	}
	return since
}
