// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package reaper reaps the processes that the shim, a child subreaper (prctl(2)), adopts from containers without a PID
// namespace of their own. Each process that the shim starts itself has a waiter, whose status a wait for any child
// would steal. So the reaper peeks (waitid(2), WNOWAIT), and reaps by pid what nobody waits for.
//
// Only the goroutine of [Reaper.Run] reaps. The lock is held for one child at a time, since a container can make
// orphans without end.
package reaper

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// Reaper tells the shim's own children from those it adopted.
type Reaper struct {
	mu sync.Mutex
	// +checklocks:mu
	suspended int // callers of Suspend that have not resumed yet
	// +checklocks:mu
	registered map[int]struct{} // children with a waiter
	look       chan os.Signal   // holds one if Run is to look at all children
	reaping    sync.RWMutex     // held by those who reap; by Freeze alone
}

// New returns a Reaper that reaps nothing until Run.
func New() *Reaper { return &Reaper{registered: map[int]struct{}{}, look: make(chan os.Signal, 1)} }

// Run reaps orphans until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	signal.Notify(r.look, unix.SIGCHLD)
	defer signal.Stop(r.look)
	for ctx.Err() == nil {
		if r.reap() {
			continue
		}
		select {
		case <-r.look:
		case <-ctx.Done():
		}
	}
}

// Reap calls reap, which reaps a child that has exited and notes how, unless the reaper is frozen: then it waits.
func (r *Reaper) Reap(reap func()) {
	r.reaping.RLock()
	defer r.reaping.RUnlock()
	reap()
}

// freezePoll is how often Freeze looks whether nobody reaps. A lock that waits would keep others from reaping.
const freezePoll = time.Millisecond

// Freeze waits for those inside Reap, after which nobody reaps until thaw: an exit is noted, or still the kernel's.
// When ctx ends first, as one may wait inside Reap for a process that cannot be watched, Freeze changes nothing, and
// the error is errdefs.ErrUnavailable.
//
// +checklocksignore: thaw unlocks
func (r *Reaper) Freeze(ctx context.Context) (thaw func(), err error) {
	resume := r.Suspend()
	for !r.reaping.TryLock() {
		select {
		case <-time.After(freezePoll):
		case <-ctx.Done():
			resume()
			return nil, fmt.Errorf("under way: the wait for a process that cannot be watched: %w", errdefs.ErrUnavailable)
		}
	}
	return func() {
		r.reaping.Unlock()
		resume()
	}, nil
}

func (r *Reaper) lookAgain() {
	select {
	case r.look <- unix.SIGCHLD:
	default: // it is going to
	}
}

// Suspend stops the reaping while children are started and waited for. The caller registers those that keep running
// before it calls resume, once.
func (r *Reaper) Suspend() (resume func()) {
	r.mu.Lock()
	r.suspended++
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.suspended--
		r.mu.Unlock()
		r.lookAgain()
	}
}

// Register says that the caller waits for pid, until Unregister, and reports whether pid was not registered before.
// Outside of Suspend the reaper may have reaped the child already.
func (r *Reaper) Register(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.registered[pid]
	r.registered[pid] = struct{}{}
	return !known
}

// Registered reports whether somebody waits for pid.
func (r *Reaper) Registered(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.registered[pid]
	return ok
}

// Unregister leaves pid to the reaper.
func (r *Reaper) Unregister(pid int) {
	r.mu.Lock()
	delete(r.registered, pid)
	r.mu.Unlock()
	r.lookAgain()
}

// reap reaps a dead orphan, and reports whether it did. It stops at a child with a waiter: Unregister calls it again.
func (r *Reaper) reap() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspended > 0 {
		return false
	}
	pid, err := deadChild()
	if err != nil || pid == 0 {
		return false // ECHILD: there is no child
	}
	if _, ok := r.registered[pid]; ok {
		return false
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		log.L.WithError(err).WithField("pid", pid).Warn("reap orphan")
		return false
	}
	log.L.WithField("pid", pid).WithField("status", status.ExitStatus()).Debug("reaped orphan")
	return true
}

// childInfo is the siginfo_t of SIGCHLD (sigaction(2)), whose union unix.Siginfo leaves opaque.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte // the union is aligned for a pointer
	pid                int32
}

// deadChild returns the pid of a dead child that is not reaped, or 0.
func deadChild() (int, error) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return int((*childInfo)(unsafe.Pointer(&info)).pid), err
}
