// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Death is that of one process, which takes a goroutine and no thread to wait for: a shim may have hundreds of
// processes that run for years.
type Death struct{ pidfd *os.File }

// WatchDeath watches a process that nobody has waited for yet. Linux 5.10 brought what it needs.
func WatchDeath(pid int) (*Death, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &Death{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Await returns when the process is dead, which leaves it to be waited for, or at a deadline that is not zero, with
// os.ErrDeadlineExceeded. It is called once.
func (d *Death) Await(deadline time.Time) error {
	defer func() { _ = d.pidfd.Close() }() // only watched
	if err := d.pidfd.SetReadDeadline(deadline); err != nil {
		return err
	}
	conn, err := d.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Read(func(fd uintptr) (dead bool) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		if err != nil && err != unix.EINTR {
			failed = os.NewSyscallError("poll", err)
		}
		return n > 0 || failed != nil
	})
	return errors.Join(err, failed)
}
