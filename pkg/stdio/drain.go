// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/unixfile"
)

// Drain waits, after the exit of the process, until what it wrote is delivered and every output has ended, or until
// ctx ends: a daemon that an exec left behind may hold an output for ever. The error names bytes that were not
// delivered, except in the pipe of a logging binary.
func (s *Streams) Drain(ctx context.Context) error {
	if s.keepUnread > 0 {
		defer time.AfterFunc(s.keepUnread, s.giveUpUnread).Stop()
	}
	copiers := s.outputCopiers()
	for _, c := range copiers {
		c.setExited()
	}
	var errs []error
	for _, c := range copiers {
		select {
		case <-c.ended:
		case <-ctx.Done():
		}
		errs = append(errs, c.drainError(context.Cause(ctx)))
	}
	err := errors.Join(errs...)
	if err != nil && ctx.Err() != nil && s.binary != nil {
		s.binary.late.Store(true)
	}
	return err
}

// giveUpUnread abandons the outputs that have no reader. Processes that hold them then neither block nor die.
func (s *Streams) giveUpUnread() {
	s.pause.enter()
	defer s.pause.leave()
	s.release(fmt.Errorf("nobody came within %v: %w", s.keepUnread, errdefs.ErrDataLoss))
	for _, c := range s.outputCopiers() {
		if to, ok := c.to.(*fifoOutput); ok {
			to.giveUp()
		}
	}
}

// DrainMayStop reports whether Drain waits only for the last bytes in fifos without a reader or, with held, for a
// logging binary that has everything, or for outputs that other processes hold and whose content at the first such
// call is delivered.
func (s *Streams) DrainMayStop(held bool) bool {
	may := true
	for _, c := range s.outputCopiers() {
		may = c.mayStop(held) && may
	}
	return may
}

func (s *Streams) outputCopiers() []*copier {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copiers
}

// markTimeout bounds the wait for the content of a pipe, which a later DrainMayStop may know.
const markTimeout = 10 * time.Millisecond

func (c *copier) mayStop(held bool) bool {
	switch c.phase.Load() {
	case ended:
		return true
	case ending:
		if to, ok := c.to.(*fifoOutput); ok {
			return to.unread() > 0
		}
		return held
	}
	if !held || c.terminal { // a terminal ends by itself
		return false
	}
	c.marked.Do(func() {
		_ = unixfile.Within(markTimeout, func() error { c.mark.Store(c.produced()); return nil })
	})
	return c.written.Load() >= c.mark.Load()
}

// drainError returns the error of Drain for one output, or nil. cause is why Drain gave up.
func (c *copier) drainError(cause error) error {
	phase, lost, written := c.phase.Load(), c.lost.Load(), c.written.Load()
	_, isLogger := c.to.(*loggerInput)
	switch {
	case lost > 0:
		return fmt.Errorf("drain %s: %d bytes could not be written: %w", c.name, lost, errdefs.ErrDataLoss)
	case phase != copying && c.cut != nil:
		return fmt.Errorf("drain %s: closed before its end: %w", c.name, errdefs.ErrAborted)
	case phase == ended && c.unread != nil:
		return fmt.Errorf("drain %s: %w", c.name, c.unread)
	case phase == ending && !isLogger:
		return fmt.Errorf("drain %s: the last bytes have no reader: %w", c.name, cause)
	case phase == copying && written < c.mark.Load():
		return fmt.Errorf("drain %s: %d bytes and what is in the pipe are not handed on: %w",
			c.name, c.taken.Load()-written, cause)
	}
	return nil
}

// Output is what a process wrote to an output.
type Output struct {
	Written int64 // including what was not read yet, except for a terminal and a pipe whose writer keeps it locked
	Dropped int64 // the part beyond Config.MaxOutput
}

// lookTimeout bounds the wait of Written for the content of one pipe.
const lookTimeout = 500 * time.Millisecond

// Written returns how much the process has written to stdout and stderr. It takes two lookTimeout at most.
func (s *Streams) Written() (outputs [2]Output) {
	for _, c := range s.outputCopiers() {
		var found atomic.Int64
		if unixfile.Within(lookTimeout, func() error { found.Store(c.produced()); return nil }) != nil {
			found.Store(c.taken.Load())
		}
		o := &outputs[slices.Index(s.outputs[:], c)]
		o.Written = found.Load()
		if c.maxOutput > 0 {
			o.Dropped = max(o.Written-c.maxOutput, 0)
		}
	}
	return outputs
}
