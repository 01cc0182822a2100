// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
)

// handle is one process of a container. os.Process, which libcontainer keeps
// too, holds a pidfd, so a reused pid is never signalled or waited for.
type handle struct {
	reaper    *reaper.Reaper
	child     child
	pid       int
	death     *native.Death // nil where the kernel has no pidfd that does not block
	maxRSS    uint64        // after Wait: that of its largest process, in bytes, of those that it waited for
	sigkilled bool          // after Wait: by SIGKILL
}

// child is a process that libcontainer or the launcher started.
type child interface {
	Wait() (*os.ProcessState, error)
	Signal(sig os.Signal) error
}

// newHandle is called while the reaper is held.
func newHandle(r *reaper.Reaper, lp *libcontainer.Process) (*handle, error) {
	pid, err := lp.Pid()
	if err != nil {
		return nil, fmt.Errorf("pid of the started process: %w", err)
	}
	return ownHandle(r, lp, pid), nil
}

// ownHandle is called while the reaper is held.
func ownHandle(r *reaper.Reaper, c child, pid int) *handle {
	r.Register(pid)
	h := &handle{reaper: r, child: c, pid: pid}
	h.death, _ = native.WatchDeath(pid)
	return h
}

func (h *handle) Pid() int { return h.pid }

func (h *handle) Wait() process.Exit {
	if h.death != nil {
		_ = h.death.Await(time.Time{}) // where it cannot be watched, child.Wait waits
	}
	state, err := h.child.Wait() // at once, or with a thread of its own
	at := time.Now()
	h.reaper.Unregister(h.pid)
	if state == nil {
		// Nothing else waits for our children, so this is a broken invariant of
		// ours. The process is gone all the same, and somebody waits to be told.
		log.L.WithError(err).WithField("pid", h.pid).Error("exit status was lost")
		return process.Exit{Status: lostStatus, At: at}
	}
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		h.maxRSS = uint64(usage.Maxrss) << 10 // getrusage(2) counts in kilobytes
	}
	status := state.Sys().(syscall.WaitStatus) // what os.ProcessState holds on Linux
	if status.Signaled() {
		h.sigkilled = status.Signal() == unix.SIGKILL
		return process.Exit{Status: signalBase + int(status.Signal()), At: at}
	}
	return process.Exit{Status: status.ExitStatus(), At: at}
}

const (
	signalBase = 128 // a shell's convention, which containerd follows: 128 + signal number
	lostStatus = 255
)

func (h *handle) Signal(sig syscall.Signal) error {
	err := h.child.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)
	}
	return err
}
