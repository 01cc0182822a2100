// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outputLimit is that of each output.
type outputLimit struct {
	most   int64  // bytes that the sink gets; 0: all
	onOver func() // is called when the first byte beyond them is dropped; nil: nothing is
}

// withinLimit returns the part of b, the bytes that were taken last, that the sink gets. The rest counts as written.
func (c *copier) withinLimit(b []byte) []byte {
	if c.limit.most == 0 {
		return b
	}
	c.mu.Lock()
	over := min(max(c.taken-c.limit.most, 0), int64(len(b)))
	first := over > 0 && c.taken-int64(len(b)) <= c.limit.most
	c.written += over
	c.mu.Unlock()
	if first && c.limit.onOver != nil {
		c.limit.onOver()
	}
	return b[:int64(len(b))-over]
}

// Output is what a process wrote to an output.
type Output struct {
	Written int64 // also what was not read yet, but for a terminal and for a pipe whose writer keeps it locked
	Dropped int64 // of it, beyond Config.MaxOutput
}

// lookTimeout bounds how long Written and Drain wait until the bytes in pipes are counted.
const lookTimeout = time.Second

// Written returns what the process wrote so far to stdout and stderr. It takes lookTimeout at most.
func (s *Streams) Written() (outputs [2]Output) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	forEach(s.outputCopiers(), func(c *copier) {
		n, _ := c.produced(ctx, false)
		o := Output{Written: n}
		if c.limit.most > 0 {
			o.Dropped = max(n-c.limit.most, 0)
		}
		if c.name == outputNames[0] {
			outputs[0] = o
		} else {
			outputs[1] = o
		}
	})
	return outputs
}

// forEach calls f for all copiers at the same time, so that one whose pipe is locked takes no time off the others.
func forEach(copiers []*copier, f func(*copier)) {
	var calls sync.WaitGroup
	for _, c := range copiers {
		calls.Go(func() { f(c) })
	}
	calls.Wait()
}

// produced is how much was taken from the source, and is in it, which also becomes the mark if that is wanted. Of a
// terminal, and not ok if ctx ends before the kernel has answered, it is how much was taken.
func (c *copier) produced(ctx context.Context, mark bool) (n int64, ok bool) {
	if !c.terminal {
		select {
		case c.looking <- struct{}{}:
			found := make(chan int64, 1)
			go func() { // ends when the kernel answers; Close waits for it
				found <- c.look(mark)
				<-c.looking
			}()
			select {
			case n := <-found:
				return n, true
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken, c.terminal
}

// look counts what produced wants to know.
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
