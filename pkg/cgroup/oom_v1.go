// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// The kernel signals that a v1 cgroup is out of memory before it chooses a process to kill. So the counter is read
	// after 1, 2, 4 … 512 ms, in all about a second.
	firstRead = time.Millisecond
	lastRead  = 512 * time.Millisecond
	killTime  = 2 * lastRead
)

// oomControl is memory.oom_control of a v1 cgroup with an eventfd. The kernel signals that when the cgroup or an
// ancestor is out of memory, and when it is removed (cgroup-v1/memory.rst, "OOM Control"). A kill by the machine's OOM
// killer, or by the limit of a nested cgroup, is counted and not signalled; the next Check finds it.
type oomControl struct {
	dir   string
	file  *os.File
	event *os.File

	// The counter is that of one cgroup only, so nested ones are read as well. They come and go: seen has the last
	// count of each by its inode number, and total never falls.
	seen  map[uint64]uint64
	total uint64

	silent  bool          // there are no signals: PREEMPT_RT (mm/memcontrol-v1.c, memcg_write_event_control)
	unheard bool          // nobody awaits the signals
	signals atomic.Uint64 // since the count was last read
	oom     time.Time     // when the count was last read after a signal
	rose    time.Time     // when it was last seen to have risen
}

func openOOMControl(dir string) (oomSource, error) {
	file, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), file.Close())
	}
	c := &oomControl{dir: dir, file: file, event: os.NewFile(uintptr(fd), "oom eventfd")}
	// file.Fd makes the file blocking, which does not matter: nobody waits on it.
	err = Write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, file.Fd()))
	if c.silent = errors.Is(err, unix.EOPNOTSUPP); err != nil && !c.silent {
		c.close()
		return nil, err
	}
	c.unheard = whyNotPolled(c.event) != ""
	return c, nil
}

func (c *oomControl) kills() (uint64, error) {
	before, now := c.total, make(map[uint64]uint64)
	if c.unheard {
		c.takeSignals()
	}
	signals := c.signals.Swap(0) // of the removal as well, if the cgroup is not there
	err := walk(c.dir, func(n node) error {
		s, err := n.stat()
		if err != nil {
			return err
		}
		file := c.file
		if len(now) > 0 { // c.dir is the first
			nested, err := n.open("memory.oom_control", unix.O_RDONLY)
			if err != nil {
				return err
			}
			defer nested.Close() //nolint:errcheck // closing a control file cannot fail
			file = nested
		}
		kills, err := numberIn(file, "oom_kill")
		if err != nil {
			return err
		}
		if last := c.seen[s.Ino]; kills > last {
			c.total += kills - last
		}
		now[s.Ino] = kills
		return nil
	}, nil)
	if len(now) == 0 {
		c.signals.Add(signals)
		return 0, err
	}
	if signals > 0 {
		c.oom = time.Now()
	}
	if c.total > before {
		c.rose = time.Now()
	}
	if err == nil || c.seen == nil {
		c.seen = now
	} else {
		maps.Copy(c.seen, now) // or the kills in cgroups that were not reached would count again
	}
	return c.total, nil
}

// killsAtMost goes by the signals, since on v1 a cgroup does not count what is below it. One of them is of the removal,
// and comes within a moment of it. While a process dies, others may be out of memory for the same kill.
func (c *oomControl) killsAtMost() (uint64, error) {
	if c.silent || time.Since(c.rose) < killTime {
		return c.total, nil
	}
	if time.Since(c.oom) < killTime {
		return c.total + 1, nil
	}
	for wait := firstRead; wait < lastRead/4; wait *= 2 {
		if c.takeSignals(); c.signals.Load() > 1 {
			return c.total + 1, nil
		}
		<-time.After(wait)
	}
	return c.total, nil
}

// takeSignals does not wait for signals, nor for await, which may wait for its caller.
func (c *oomControl) takeSignals() {
	conn, err := c.event.SyscallConn()
	if err != nil {
		return // it was closed
	}
	_ = conn.Control(func(fd uintptr) { // fails likewise
		var buf [8]byte
		if n, err := unix.Read(int(fd), buf[:]); err == nil && n == len(buf) {
			c.signals.Add(binary.NativeEndian.Uint64(buf[:]))
		}
	})
}

func (c *oomControl) whyNoAwait() string {
	if c.silent {
		return "a kernel with PREEMPT_RT does not tell of them on cgroup v1"
	}
	return whyNotPolled(c.event)
}

func (c *oomControl) await(check func()) {
	var buf [8]byte // an eventfd is read eight bytes at a time
	for wait := time.Duration(0); ; {
		var deadline time.Time
		if wait > 0 {
			deadline = time.Now().Add(wait)
		}
		_ = c.event.SetReadDeadline(deadline) // fails when the file is closed, and then Read does as well
		_, err := c.event.Read(buf[:])
		switch {
		case err == nil:
			c.signals.Add(binary.NativeEndian.Uint64(buf[:]))
			wait = firstRead
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return
		case wait < lastRead:
			wait *= 2
		default:
			wait = 0
		}
		check()
	}
}

// close also makes the kernel forget the eventfd.
func (c *oomControl) close() {
	_ = c.event.Close() // nothing to flush: closing an eventfd or a control file cannot fail
	_ = c.file.Close()
}
