// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/ociruntime/execgroup"
	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
)

// container implements process.RuntimeContainer. libcontainer holds a lock of lc while it starts a process, so
// operations that must work at any time (signals, freezing, thawing) do not use lc.
type container struct {
	runtime   *Runtime
	config    process.Config
	lc        *libcontainer.Container
	creation  *creation // for Discard
	manager   cgroups.Manager
	cgroup    *cgroup.Cgroup
	ownsPIDs  bool                  // in a PID namespace of its own
	resources *specs.LinuxResources // after the last Update; nil before the first. Guarded by the operation lock of init.

	// These are nil when init is restored.
	init      *handle
	initFD    *os.File    // pidfd of init, which Start polls and Destroy closes
	held      *native.Run // that started init; nil if libcontainer did
	initStage exeFile     // what init runs until it runs the container's program, if libcontainer started it

	initReason string // why libcontainer started init; empty if it did not
	fallback   atomic.Pointer[fallback]

	awaitsProgram    atomic.Bool   // Start let init run its program, and nobody has seen it do so yet
	libcontainerExec chan struct{} // holds one while libcontainer starts an exec: a lock with a context

	filter     func() (*launch.Filter, error) // the seccomp filter of init and execs, looked up by the first
	execGroups *execgroup.Groups
}

func (c *container) Cgroup() *cgroup.Cgroup { return c.cgroup }

// fallback describes the execs that libcontainer started because the launcher could not.
type fallback struct {
	execs  uint64
	reason string // of the last
}

// Launch implements process.RuntimeContainer.
func (c *container) Launch() inspect.Launch {
	l := inspect.Launch{Init: inspect.ByLibcontainer, InitReason: c.initReason}
	switch {
	case c.config.Checkpoint != "":
		l.Init = inspect.ByCRIU
	case c.held != nil:
		l.Init = inspect.ByLauncher
	}
	if f := c.fallback.Load(); f != nil {
		l.ExecsByLibcontainer, l.ExecReason = f.execs, f.reason
	}
	return l
}

// fellBack counts an exec that libcontainer starts.
func (c *container) fellBack(reason string) {
	for {
		before := c.fallback.Load()
		now := &fallback{execs: 1, reason: reason}
		if before != nil {
			now.execs += before.execs
		}
		if c.fallback.CompareAndSwap(before, now) {
			return
		}
	}
}

func (c *container) Pause() error  { return c.manager.Freeze(cgroups.Frozen) }
func (c *container) Resume() error { return c.manager.Freeze(cgroups.Thawed) }

// KeepCPUSet implements process.RuntimeContainer.
func (c *container) KeepCPUSet(ctx context.Context, cpus, mems string) error {
	if s, ok := c.manager.(*systemd.Scope); ok {
		return s.SetCPUSet(ctx, cpus, mems)
	}
	return nil
}

// Start implements process.RuntimeContainer.
func (c *container) Start() error {
	path := filepath.Join(stateDir(c.config.Root, c.config.ID), execFifo)
	start := func() error { return c.openFifo(path) }
	if c.held != nil {
		start = c.held.Resume
	}
	if err := start(); err != nil {
		return err
	}
	// runc's commands take a container without this file for running. The program runs by now: no failed start.
	if err := os.Remove(path); err != nil {
		log.L.WithError(err).WithField("container", c.config.ID).Warn("runc's commands take the container for created")
	}
	return nil
}

// openFifo opens the fifo at which libcontainer's init waits. libcontainer's Exec does the same, but its goroutine and
// thread never end if init is dead. Init writes one byte just before it runs the program (runc
// libcontainer/standard_init_linux.go).
func (c *container) openFifo(path string) error {
	fifo, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fifo) }() // nothing was written
	c.awaitsProgram.Store(true)
	return awaitByte(fifo, int(c.initFD.Fd()))
}

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

// initProcess is init as callers see it. Start returns when init is about to run its program. A SIGTERM before it does
// would end libcontainer's stage, with status 2, and not reach the program, which may handle it. So a signal waits for
// the program, as does an exec, which may send one.
type initProcess struct {
	*handle
	container *container
}

// Init implements process.RuntimeContainer.
func (c *container) Init() process.Handle { return initProcess{c.init, c} }

func (i initProcess) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		i.container.AwaitProgram()
	}
	return i.handle.Signal(sig)
}

// AwaitProgram implements process.RuntimeContainer: it returns when init runs its program or has exited, or after the
// timeout.
func (c *container) AwaitProgram() {
	if !c.awaitsProgram.Load() {
		return
	}
	timeout := programTimeout
	if h := c.config.Spec.Hooks; h != nil && len(h.StartContainer) > 0 {
		timeout = programHookTimeout
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); <-time.After(programPoll) {
		if exe, err := statExe(c.init.pid); err != nil || exe != c.initStage {
			c.awaitsProgram.Store(false)
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
