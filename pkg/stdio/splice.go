// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import "golang.org/x/sys/unix"

// spliceMin is from how many bytes on the kernel moves the pages from one pipe
// to the other (splice(2)) instead of having them copied here twice. Less is
// copied: a page that is moved takes one of the 16 places of a pipe however
// little is in it, while small writes that are copied share pages.
const spliceMin = 16 << 10

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

// splice moves what is in the source, as much as the sink has room for, and tells
// whether anything was moved. What the sink has no room for is to be copied:
// spliced page by page, as a slow reader makes room, it would wake the writer for
// each page. Errors are left to the copying, which will find them.
func (c *copier) splice(in int) bool {
	if c.pipe == nil {
		return false
	}
	c.mu.Lock() // for what tryRead says about it
	defer c.mu.Unlock()
	size, err := unix.IoctlGetInt(in, fionread)
	if err != nil || size < spliceMin {
		return false
	}
	var moved int64
	err = c.pipe.conn.Control(func(out uintptr) {
		moved, err = unix.Splice(in, nil, int(out), nil, size, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	})
	if err != nil || moved <= 0 {
		return false
	}
	c.taken += moved
	c.given += moved
	return true
}
