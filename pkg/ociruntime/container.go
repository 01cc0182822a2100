// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
)

// container implements process.RuntimeContainer. libcontainer's own lock is held while
// it starts a process, so what must answer at any time (signals, freezing,
// thawing) does not go through lc.
type container struct {
	runtime  *Runtime
	config   process.Config
	lc       *libcontainer.Container
	init     *handle  // nil when init is restored
	initFD   *os.File // pidfd of init, which Start polls and Destroy closes; nil when init is restored
	manager  cgroups.Manager
	cgroup   *cgroup.Cgroup
	stateDir string
	asked    *specs.LinuxResources // by config.json and each Update since; nil before the first. Guarded by the turn of init.
	ownsPIDs bool

	stage     os.FileInfo // what init runs until it becomes the container's program; nil when init is restored
	beginning atomic.Bool // init was let go, and nobody saw its program yet

	spawning chan struct{} // holds one while libcontainer starts an exec, as its own lock does, which knows no context

	execs       execs
	execCgroups execCgroups
}

func (c *container) Cgroup() *cgroup.Cgroup { return c.cgroup }
func (c *container) OwnsPIDs() bool         { return c.ownsPIDs }
func (c *container) Pause() error           { return c.manager.Freeze(cgroups.Frozen) }
func (c *container) Resume() error          { return c.manager.Freeze(cgroups.Thawed) }

// KeepCPUSet implements process.RuntimeContainer.
func (c *container) KeepCPUSet(ctx context.Context, cpus, mems string) error {
	if s, ok := c.manager.(*systemd.Scope); ok {
		return s.SetCPUSet(ctx, cpus, mems)
	}
	return nil
}

// Start opens the fifo at which init waits, in place of libcontainer's Exec,
// which leaves a goroutine and its thread behind for ever when init is dead.
// Init writes one byte just before it becomes the program (runc
// libcontainer/standard_init_linux.go).
func (c *container) Start(ctx context.Context) error {
	path := filepath.Join(c.stateDir, "exec.fifo")
	fifo, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fifo) }() // nothing was written
	c.beginning.Store(true)
	if err := awaitByte(ctx, fifo, int(c.initFD.Fd())); err != nil {
		return err
	}
	// Its absence tells runc's commands that the container runs.
	return os.Remove(path)
}

var errInitDead = fmt.Errorf("init is dead: %w", errdefs.ErrFailedPrecondition)

// awaitByte waits until fifo has a byte to read, or the process of pidfd is
// dead without having written one. Init writes as soon as the fifo has a
// reader, unless something outside holds it up: only then does it matter that
// ctx is looked at now and then.
func awaitByte(ctx context.Context, fifo, pidfd int) error {
	const lookAtContext = 250 // ms
	for {
		fds := []unix.PollFd{{Fd: int32(fifo), Events: unix.POLLIN}, {Fd: int32(pidfd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, lookAtContext); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		dead := fds[1].Revents != 0
		if dead {
			// It may have written after poll looked at the fifo, and died before
			// poll looked at the pidfd.
			if _, err := unix.Poll(fds[:1], 0); err != nil {
				return os.NewSyscallError("poll", err)
			}
		}
		switch {
		case fds[0].Revents&unix.POLLIN != 0:
			return nil
		case dead:
			return errInitDead
		case ctx.Err() != nil:
			return fmt.Errorf("init does not run its program: %w", ctx.Err())
		}
	}
}

// Destroy implements process.RuntimeContainer.
func (c *container) Destroy() error {
	if err := c.thaw(); err != nil {
		return err
	}
	if err := c.runtime.destroy(c.lc); err != nil {
		return err
	}
	_ = c.initFD.Close() // closed already by a Destroy before this one, or nil
	return nil
}

// Discard implements process.RuntimeContainer.
func (c *container) Discard() error {
	defer func() { _ = c.initFD.Close() }() // nobody waits for it
	if err := c.thaw(); err != nil {
		return err
	}
	return c.runtime.discard(c.lc, c.stateDir)
}

// thaw is for an empty cgroup that is frozen: it counts as paused, and is not
// destroyed.
func (c *container) thaw() error {
	if err := c.Resume(); err != nil && !errors.Is(err, os.ErrNotExist) && c.manager.Exists() {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// How long a signal or an exec waits for the container's program, and how often it looks. It is there at once, but on a machine
// that is short of CPU time. StartContainer hooks, which run before it, can take as long as they like, so with these it is less;
// the signal is libcontainer's then.
const (
	beginTimeout     = time.Second
	beginHookTimeout = 50 * time.Millisecond
	beginPoll        = 200 * time.Microsecond
)

// initProcess is init as others see it. Start answers when init is about to become its program, which takes the kernel a
// while. A SIGTERM before that would end libcontainer's program, with status 2, and not be for the container's, which may handle
// or ignore it. So a signal waits for that, as does an exec, which may send one; and not Start.
type initProcess struct {
	*handle
	container *container
}

// Init implements process.RuntimeContainer.
func (c *container) Init() process.Handle { return initProcess{c.init, c} }

func (i initProcess) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		i.container.awaitProgram()
	}
	return i.handle.Signal(sig)
}

// awaitProgram returns when init runs its program, or is dead, or its time is over.
func (c *container) awaitProgram() {
	if !c.beginning.Load() {
		return
	}
	timeout := beginTimeout
	if h := c.config.Spec.Hooks; h != nil && len(h.StartContainer) > 0 {
		timeout = beginHookTimeout
	}
	for end := time.Now().Add(timeout); time.Now().Before(end); <-time.After(beginPoll) {
		if program, err := executable(c.init.pid); err != nil || !os.SameFile(program, c.stage) {
			c.beginning.Store(false)
			return
		}
	}
}

// executable is the file that a process runs. A container can give its program any name, but not make it run the sealed
// copy of our binary that is the first stage of its init.
func executable(pid int) (os.FileInfo, error) { return os.Stat(fmt.Sprintf("/proc/%d/exe", pid)) }
