// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// fifo is the gate of an init that libcontainer has started. It opens when init is about to run its program.
type fifo struct {
	container *container
	pid       int
	stage     exeFile     // what init runs until it runs the container's program
	opened    atomic.Bool // and nobody has seen init run its program yet
}

// open opens the fifo at which init waits. libcontainer's Exec does the same, but its goroutine and thread never end if
// init is dead. Init writes one byte just before it runs the program (runc libcontainer/standard_init_linux.go).
func (f *fifo) open() error {
	path := f.container.fifo()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	f.opened.Store(true)
	return awaitByte(fd, int(f.container.initFD.Fd()))
}

func (*fifo) close() {}

// awaitByte waits until fifo has a byte to read, or the process of pidfd has died without writing one.
func awaitByte(fifo, pidfd int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fifo), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		if fds[1].Revents != 0 {
			_, _ = unix.Poll(fds[:1], 0) // it may have written and died after poll checked the fifo
		}
		switch {
		case fds[0].Revents&unix.POLLIN != 0:
			return nil
		case fds[1].Revents != 0:
			return fmt.Errorf("init is dead: %w", errdefs.ErrFailedPrecondition)
		}
	}
}

// How long a signal or an exec waits for init to run the container's program, and how often it looks. Usually init runs
// it immediately. StartContainer hooks run before it and may take any time, so with them the wait is short, and the
// signal goes to libcontainer's stage.
const (
	programTimeout     = time.Second
	programHookTimeout = 50 * time.Millisecond
	programPoll        = 200 * time.Microsecond
)

func (f *fifo) awaitProgram() {
	if !f.opened.Load() {
		return
	}
	timeout := programTimeout
	if h := f.container.config.Spec.Hooks; h != nil && len(h.StartContainer) > 0 {
		timeout = programHookTimeout
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); <-time.After(programPoll) {
		if exe, err := statExe(f.pid); err != nil || exe != f.stage {
			f.opened.Store(false)
			return
		}
	}
}

// statExe identifies the file that a process runs. A container can give its program any name, but cannot run the sealed
// copy of this program that is the first stage of its init. The file system is not asked: it may be a FUSE file system
// that the container serves, or fails to serve.
func statExe(pid int) (exeFile, error) {
	var s unix.Statx_t
	path := fmt.Sprintf("/proc/%d/exe", pid)
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &s); err != nil {
		return exeFile{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return exeFile{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}, nil
}

// exeFile identifies a file.
type exeFile struct{ dev, ino uint64 }
