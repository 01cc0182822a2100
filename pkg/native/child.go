// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitDeath returns when a process that nobody has waited for is dead, which leaves it to be waited for, or when ctx
// ends. Unlike os.Process.Wait, it takes no thread: a shim may have hundreds of processes that run for years. It needs
// Linux 5.10.
func AwaitDeath(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()                                                                   //nolint:errcheck // only watched
	defer context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })() // so is closed
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) (dead bool) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // may be interrupted
		return n > 0
	})
}

// isChild returns an error if pid cannot be waited for.
func isChild(pid int) error {
	err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return os.NewSyscallError("waitid", err)
}
