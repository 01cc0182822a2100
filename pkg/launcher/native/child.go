// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitDeath returns when a process that nobody has waited for has exited, without reaping it, or when ctx ends. Unlike
// os.Process.Wait, it takes no thread: a shim may have hundreds of processes that run for years. It needs Linux 5.10.
func AwaitDeath(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()                                                                   //nolint:errcheck // only watched
	defer context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })() // fails only if it is closed
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	// The poller reports an exit only once, so if poll fails after that, Read must not wait for another report.
	var failed error
	err = conn.Read(func(fd uintptr) (ended bool) {
		n := 0
		for failed = unix.EINTR; errors.Is(failed, unix.EINTR); {
			n, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		}
		return n > 0 || failed != nil
	})
	return cmp.Or(err, os.NewSyscallError("poll", failed))
}

// OnThread runs f on a thread that ends after it, and that is not the first one of the process, which would not end. So
// f may change what belongs to the thread alone.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f
		runtime.LockOSThread() // and does not unlock, so the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- OnThread(f) // elsewhere, since this goroutine keeps the first thread meanwhile
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// isChild returns an error if pid cannot be waited for.
func isChild(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("waitid", err)
		}
	}
}
