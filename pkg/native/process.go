// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

/*
#include <sys/syscall.h>
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Death is that of one process. Waiting for it takes a goroutine and no thread: a shim may have hundreds of processes
// that run for years.
type Death struct{ pidfd *os.File }

// WatchDeath watches a process that nobody has waited for yet. It needs Linux 5.10.
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

func awaitDeath(pid int, deadline time.Time) error {
	death, err := WatchDeath(pid)
	if err != nil {
		return err
	}
	return death.Await(deadline)
}

// isChild returns an error if p cannot be waited for.
func isChild(p *os.Process) (err error) {
	noHandle := p.WithHandle(func(pidfd uintptr) {
		for {
			err = unix.Waitid(unix.P_PIDFD, int(pidfd), nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
			if err != unix.EINTR {
				return
			}
		}
	})
	if noHandle != nil {
		return noHandle
	}
	return os.NewSyscallError("waitid", err)
}

// pathCalls are the system calls of the program that a file system of the container can block, with the index of the
// argument that is the path.
var pathCalls = map[int]struct {
	name string
	path int
}{
	C.SYS_chdir:      {"chdir", 0},
	C.SYS_openat:     {"openat", 1},
	C.SYS_newfstatat: {"newfstatat", 1},
	C.SYS_faccessat2: {"faccessat2", 1},
	C.SYS_execve:     {"execve", 0},
}

// placeOf says which system call a living process is in, with its path if it has one.
func placeOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err != nil {
		return "an unknown step"
	}
	var number int
	var args [2]uint64
	if n, err := fmt.Sscanf(string(text), "%d 0x%x 0x%x", &number, &args[0], &args[1]); n != 1+len(args) {
		return fmt.Sprintf("no system call (%s: %v)", bytes.TrimSpace(text), err)
	}
	call, ok := pathCalls[number]
	if !ok {
		return fmt.Sprintf("system call %d", number)
	}
	path := make([]byte, 256)
	if memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid)); err == nil {
		_, _ = memory.ReadAt(path, int64(args[call.path])) // what can be read
		_ = memory.Close()                                 // only read
	}
	path, _, _ = bytes.Cut(path, []byte{0})
	return fmt.Sprintf("%s %q", call.name, path)
}
