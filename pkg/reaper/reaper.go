// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package reaper reaps the processes that the shim adopts, and no others.
//
// The shim is a child subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): what a
// container without a PID namespace of its own leaves behind becomes a child of
// the shim. Every process that the shim starts itself has exactly one waiter,
// and a wait for "any child" would steal its exit status. So the reaper only
// peeks for a dead child (waitid(2), WNOWAIT) and collects it by pid, after it
// has made sure that nobody else will.
//
// [Reaper.Run] is the one goroutine; it has no timer, and sleeps while no child
// dies. The lock is never held across a call that blocks.
package reaper

import (
	"context"
	"os"
	"os/signal"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// Reaper tells the shim's own children from those it adopted.
type Reaper struct {
	mu    sync.Mutex
	holds int              // calls under way that start and wait for children which only they know
	owned map[int]struct{} // children with a waiter
}

// New makes a Reaper. Without Run it reaps nothing on its own.
func New() *Reaper { return &Reaper{owned: map[int]struct{}{}} }

// Run reaps orphans until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	dead := make(chan os.Signal, 1) // one pending wake-up is enough: each looks at all children
	signal.Notify(dead, unix.SIGCHLD)
	defer signal.Stop(dead)
	for {
		r.reap()
		select {
		case <-dead:
		case <-ctx.Done():
			return
		}
	}
}

// Hold stops the reaping while the caller starts children, or has a library do
// so, and waits for them. The caller names with Own, before it calls release,
// those that live on. release is called once.
func (r *Reaper) Hold() (release func()) {
	r.mu.Lock()
	r.holds++
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		r.holds--
		r.mu.Unlock()
		r.reap()
	}
}

// Own says that the caller waits for pid and calls Disown after that.
func (r *Reaper) Own(pid int) {
	r.mu.Lock()
	r.owned[pid] = struct{}{}
	r.mu.Unlock()
}

// Claim is Own for a child that another process made for the caller, and named.
// It reports whether nobody owned pid before. The reaper may have collected a
// child that died before it was claimed.
func (r *Reaper) Claim(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.owned[pid]; ok {
		return false
	}
	r.owned[pid] = struct{}{}
	return true
}

// Owns reports whether somebody waits for pid.
func (r *Reaper) Owns(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.owned[pid]
	return ok
}

// Disown says that pid has been waited for, or that nobody waits for it any
// more, which leaves it to the reaper.
func (r *Reaper) Disown(pid int) {
	r.mu.Lock()
	delete(r.owned, pid)
	r.mu.Unlock()
	r.reap()
}

// reap collects dead orphans. It stops at a child that is somebody's, or may
// be: Disown and release come back here.
func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.holds == 0 {
		pid, err := deadChild()
		if err != nil || pid == 0 {
			return // ECHILD: no child at all
		}
		if _, ok := r.owned[pid]; ok {
			return
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil && err != unix.EINTR {
			log.L.WithError(err).WithField("pid", pid).Warn("reap orphan")
			return
		}
		log.L.WithField("pid", pid).WithField("status", status.ExitStatus()).Debug("reaped orphan")
	}
}

// deadChild is the pid of a child that is dead and not collected, or 0. It
// collects nothing.
func deadChild() (int, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return siginfoPid(&info), err
		}
	}
}
