// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// The kernel signals that a v1 cgroup is out of memory before it chooses a process to kill. So the counter is read
	// after 1, 2, 4 … 512 ms, in all about a second.
	firstRead = time.Millisecond
	lastRead  = 512 * time.Millisecond
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

	silent bool // there are no signals: PREEMPT_RT (mm/memcontrol-v1.c, memcg_write_event_control)
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
	return c, nil
}

func (c *oomControl) kills() (uint64, error) {
	now := make(map[uint64]uint64)
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
		return 0, err
	}
	if err == nil || c.seen == nil {
		c.seen = now
	} else {
		maps.Copy(c.seen, now) // or the kills in cgroups that were not reached would count again
	}
	return c.total, nil
}

// killsAtMost returns the last number: a v1 cgroup does not count what is below it, so nobody knows of later kills.
func (c *oomControl) killsAtMost() (uint64, error) { return c.total, nil }

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
