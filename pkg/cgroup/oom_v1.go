// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

const (
	// The kernel signals that a v1 cgroup is out of memory before it chooses a process to kill. So the counter is read
	// after 1, 2, 4 … 512 ms, in all about a second.
	firstRead = time.Millisecond
	lastRead  = 512 * time.Millisecond

	oomControlFile = "memory.oom_control"
)

// oomControl is memory.oom_control of a v1 cgroup with an eventfd. The kernel signals that when the cgroup or an
// ancestor is out of memory, and when it is removed (cgroup-v1/memory.rst, "OOM Control"). A kill by the machine's OOM
// killer, or by the limit of a nested cgroup, is counted and not signalled; the next Check finds it.
type oomControl struct {
	dir   string
	event *os.File
}

func openOOMControl(dir string) (oomSource, error) {
	file, err := os.Open(filepath.Join(dir, oomControlFile))
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // closing a control file cannot fail
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	c := &oomControl{dir: dir, event: os.NewFile(uintptr(fd), "oom eventfd")}
	err = Write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, file.Fd()))
	if errors.Is(err, unix.EOPNOTSUPP) { // mm/memcontrol-v1.c, memcg_write_event_control
		log.L.WithField("cgroup", dir).Warn("a kernel with PREEMPT_RT does not tell of OOM kills on cgroup v1: " +
			"they are reported only when init or an exec ends")
		err = nil
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// kills adds up the counters of the cgroup and those nested in it, each of which is that of one cgroup only.
func (c *oomControl) kills() (sum uint64, err error) {
	err = walk(c.dir, func(dir string) error {
		n, err := readNumber(filepath.Join(dir, oomControlFile), "oom_kill")
		sum += n
		return err
	}, nil)
	return sum, err
}

// killsAtMost fails: a v1 cgroup does not count what is below it, so nobody knows of the kills in one that is gone.
func (c *oomControl) killsAtMost() (uint64, error) { return 0, unix.ENODEV }

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
func (c *oomControl) close() { _ = c.event.Close() } // there is nothing to flush
