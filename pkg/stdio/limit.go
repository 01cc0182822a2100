// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// withinLimit returns the part of b, the last bytes read, that goes to the sink. The rest counts as written.
func (c *copier) withinLimit(b []byte) []byte {
	if c.maxOutput == 0 {
		return b
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	over := min(max(c.taken-c.maxOutput, 0), int64(len(b)))
	c.written += over
	return b[:int64(len(b))-over]
}

// Output is what a process wrote to an output.
type Output struct {
	Written int64 // including what was not read yet, except for a terminal and a pipe whose writer keeps it locked
	Dropped int64 // the part beyond Config.MaxOutput
}

// lookTimeout bounds how long Written and Drain wait until the bytes in pipes are counted.
const lookTimeout = time.Second

// Written returns how much the process has written to stdout and stderr. It takes lookTimeout at most.
func (s *Streams) Written() (outputs [2]Output) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	forEach(s.outputCopiers(), func(c *copier) {
		n, _ := c.produced(ctx, false)
		o := Output{Written: n}
		if c.maxOutput > 0 {
			o.Dropped = max(n-c.maxOutput, 0)
		}
		if c.name == outputNames[0] {
			outputs[0] = o
		} else {
			outputs[1] = o
		}
	})
	return outputs
}

// forEach calls f for all copiers concurrently, so that one whose pipe is locked takes no time from the others.
func forEach(copiers []*copier, f func(*copier)) {
	var calls sync.WaitGroup
	for _, c := range copiers {
		calls.Go(func() { f(c) })
	}
	calls.Wait()
}

// produced returns how much was taken from the source plus what is in it, which also becomes the mark if mark is set.
// For a terminal, or if ctx ends before the kernel has answered, it is only what was taken; in the latter case ok is
// false.
func (c *copier) produced(ctx context.Context, mark bool) (n int64, ok bool) {
	if !c.terminal {
		found := make(chan int64, 1)
		go func() { found <- c.look(mark) }() // ends when the kernel answers
		select {
		case n := <-found:
			return n, true
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken, c.terminal
}

// look does the counting for produced.
func (c *copier) look(mark bool) int64 {
	c.reading.Lock()
	defer c.reading.Unlock()
	left := 0
	// Control fails when c has ended: then nothing is left.
	_ = c.from.conn.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), fionread); err == nil {
			left = n
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.taken + int64(left)
	if mark {
		c.mark = n
	}
	return n
}
