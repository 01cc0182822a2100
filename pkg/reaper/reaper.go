// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package reaper reaps the processes that the shim adopts, and no others.
//
// The shim is a child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): processes that a container without a PID namespace
// of its own leaves behind become children of the shim. Each process that the shim starts itself has exactly one
// waiter, and a wait for "any child" would steal its exit status. So the reaper only peeks for a dead child (waitid(2),
// WNOWAIT) and reaps it by pid once it knows that nobody else will.
//
// [Reaper.Run] is the one goroutine. It has no timer and sleeps until a child dies. The lock is never held across a
// call that blocks.
package reaper

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"unsafe"

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
}

// New returns a Reaper that reaps nothing on its own until Run.
func New() *Reaper { return &Reaper{registered: map[int]struct{}{}} }

// Run reaps orphans until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	sigchld := make(chan os.Signal, 1) // one pending signal is enough: reap looks at all children
	signal.Notify(sigchld, unix.SIGCHLD)
	defer signal.Stop(sigchld)
	for {
		r.reap()
		select {
		case <-sigchld:
		case <-ctx.Done():
			return
		}
	}
}

// Suspend stops the reaping while the caller, or a library that it calls, starts children and waits for them. The
// caller registers those that keep running before it calls resume, which it does once.
func (r *Reaper) Suspend() (resume func()) {
	r.mu.Lock()
	r.suspended++
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.suspended--
		r.mu.Unlock()
		r.reap()
	}
}

// Register says that the caller waits for pid and then calls Unregister. It reports whether pid was not registered
// before. Outside of Suspend the reaper may have reaped the child already.
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

// Unregister says that pid was waited for, or that nobody waits for it any more, which leaves it to the reaper.
func (r *Reaper) Unregister(pid int) {
	r.mu.Lock()
	delete(r.registered, pid)
	r.mu.Unlock()
	r.reap()
}

// reap reaps dead orphans. It stops at a child that has a waiter, or may have one: Unregister and resume call it again.
func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.suspended == 0 {
		pid, err := deadChild()
		if err != nil || pid == 0 {
			return // ECHILD: there is no child
		}
		if _, ok := r.registered[pid]; ok {
			return
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
			log.L.WithError(err).WithField("pid", pid).Warn("reap orphan")
			return
		}
		log.L.WithField("pid", pid).WithField("status", status.ExitStatus()).Debug("reaped orphan")
	}
}

// childInfo is siginfo_t as the kernel fills it for SIGCHLD (sigaction(2)). unix.Siginfo leaves the union opaque.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte // the union is aligned for a pointer
	pid                int32
}

// deadChild returns the pid of a child that is dead and not reaped, or 0. It does not reap it.
func deadChild() (int, error) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return int((*childInfo)(unsafe.Pointer(&info)).pid), err
}
