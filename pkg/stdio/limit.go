// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import "golang.org/x/sys/unix"

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
	Written int64 // also what was not read yet, but for a terminal
	Dropped int64 // of it, beyond Config.MaxOutput
}

// Written returns what the process wrote so far to stdout and stderr.
func (s *Streams) Written() (outputs [2]Output) {
	for _, c := range s.outputCopiers() {
		n := c.produced()
		o := Output{Written: n}
		if c.limit.most > 0 {
			o.Dropped = max(n-c.limit.most, 0)
		}
		if c.name == outputNames[0] {
			outputs[0] = o
		} else {
			outputs[1] = o
		}
	}
	return outputs
}

// produced is how much was taken from the source, and is in it.
func (c *copier) produced() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.taken
	if !c.terminal {
		// Control fails when c has ended: then nothing is left.
		_ = c.from.conn.Control(func(fd uintptr) {
			if left, err := unix.IoctlGetInt(int(fd), fionread); err == nil {
				n += int64(left)
			}
		})
	}
	return n
}
