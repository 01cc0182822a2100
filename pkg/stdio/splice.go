// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// spliceMin is from how many bytes on the kernel moves the pages from one pipe
// to the other (splice(2)) instead of having them copied here twice. Less is
// copied: a page that is moved takes one of the 16 places of a pipe however
// little is in it, while small writes that are copied share pages.
const spliceMin = 16 << 10

// errBulk says that there is enough to splice.
var errBulk = errors.New("enough to splice")

// pipeOf is the pipe or fifo that a sink leads to, or nil.
func pipeOf(s sink) *pipeEnd {
	var end *pipeEnd
	switch s := s.(type) {
	case *pipeEnd:
		end = s
	case *fifoOutput:
		end = s.pipeEnd
	case *loggerInput:
		end = s.pipeEnd
	case *streamOutput:
		end = s.pipeEnd
	default:
		return nil
	}
	var st unix.Stat_t
	err := end.conn.Control(func(fd uintptr) {
		if unix.Fstat(int(fd), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			end = nil
		}
	})
	if err != nil {
		return nil // closed: run will see that
	}
	return end
}

// bulk tells whether what is in the source is to be spliced.
func (c *copier) bulk(fd int) bool {
	if c.pipe == nil {
		return false
	}
	n, err := unix.IoctlGetInt(fd, fionread)
	return err == nil && n >= spliceMin
}

// splice moves some of what is in the source, once there is room in the sink.
// The error is os.ErrClosed. Any other makes it copy from now on, which will
// find what is wrong.
func (c *copier) splice() error {
	var serr error
	err := c.pipe.conn.Write(func(out uintptr) bool {
		var n int
		n, serr = c.trySplice(int(out))
		return n > 0 || serr != nil
	})
	switch {
	case err != nil:
		return interrupted(err)
	case errors.Is(serr, os.ErrClosed):
		return serr
	case serr != nil:
		c.pipe = nil
	}
	return nil
}

// trySplice splices once; with neither bytes nor an error the sink is full. The
// lock is for what tryRead says about it.
func (c *copier) trySplice(out int) (moved int, serr error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.from.conn.Control(func(in uintptr) {
		n, err := unix.Splice(int(in), nil, out, nil, 1<<20, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Splice(int(in), nil, out, nil, 1<<20, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		}
		if moved = int(n); !errors.Is(err, unix.EAGAIN) {
			serr = err
		}
	})
	if err != nil {
		return 0, interrupted(err)
	}
	if moved > 0 {
		c.taken += int64(moved)
		c.given += int64(moved)
		c.passLocked(false)
	}
	return max(moved, 0), serr
}
