// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer/utils"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
	"sandbox.internal/shim/pkg/poll"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// handle is one process of a container. os.Process, which child has, holds a pidfd, so a reused pid is never signalled.
type handle struct {
	reaper *reaper.Reaper
	child  child
	pid    int

	reaping sync.Mutex // held while it is reaped, and to keep its id taken
	// +checklocks:reaping
	exit *process.Exit // once it is reaped
}

// child is a process that libcontainer or the launcher started.
type child interface {
	Wait() (*os.ProcessState, error)
	Signal(sig os.Signal) error
}

// newHandle returns c's handle. The caller has suspended the reaper or registered c: otherwise the exit can be lost.
func newHandle(r *reaper.Reaper, c child, pid int) *handle {
	r.Register(pid)
	return &handle{reaper: r, child: c, pid: pid}
}

func (h *handle) Pid() int { return h.pid }

func (h *handle) OnEnd(f func()) {
	if p, ok := h.child.(*os.Process); ok {
		poll.OnDeath(p, f)
		return
	}
	go f() // libcontainer shows no descriptor, or a former program has reaped it
}

// pidfd returns a descriptor of the process. Once that is reaped, the error is ESRCH.
func (h *handle) pidfd() (*os.File, error) {
	h.reaping.Lock() // so the id stays the process's
	defer h.reaping.Unlock()
	fd, err := -1, error(unix.ESRCH)
	if h.exit == nil {
		fd, err = unix.PidfdOpen(h.pid, 0)
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

func (h *handle) Wait() process.Exit {
	h.reaping.Lock()
	exit := h.exit // noted by the former program, or nil
	h.reaping.Unlock()
	if exit != nil {
		return *exit
	}
	// It fails for lack of descriptors. Then the reaper cannot be frozen, and child.Wait takes a thread.
	_ = native.AwaitDeath(context.Background(), h.pid)
	h.reaper.Reap(func() {
		h.reaping.Lock()
		defer h.reaping.Unlock()
		h.exit = new(h.reap())
	})
	return *h.exit // +checklocksignore: it does not change any more
}

// reap reaps the process, once.
func (h *handle) reap() process.Exit {
	state, err := h.child.Wait()
	at := time.Now()
	h.reaper.Unregister(h.pid)
	if state == nil {
		// A bug: nothing else may wait for our children. The process is gone all the same: publish its exit.
		log.L.WithError(err).WithField("pid", h.pid).Error("exit status was lost")
		return process.Exit{Status: 255, At: at}
	}
	status := state.Sys().(syscall.WaitStatus) // what os.ProcessState holds on Linux
	exit := process.Exit{Status: utils.ExitStatus(unix.WaitStatus(status)), At: at}
	exit.Used.User, exit.Used.System = state.UserTime(), state.SystemTime()
	exit.Used.CPU = exit.Used.User + exit.Used.System
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		exit.Used.Memory = uint64(usage.Maxrss) << 10 // getrusage(2) counts in kilobytes
	}
	if status.Signaled() {
		exit.Signal = status.Signal()
	}
	return exit
}

// started passes the process its streams. If that fails, or ctx has ended, it kills and reaps the process.
func (h *handle) started(ctx context.Context, s *stdio.Streams) error {
	err := s.Started()
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", context.Cause(ctx)) // libcontainer may report a killed process as started
	}
	if err != nil {
		h.kill()
	}
	return err
}

// kill kills the process and reaps it.
func (h *handle) kill() {
	_ = h.Signal(unix.SIGKILL) // it may be dead already
	h.Wait()
}

func (h *handle) Signal(sig syscall.Signal) error {
	err := h.child.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)
	}
	return err
}
