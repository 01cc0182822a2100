// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package nsholder starts the process that holds the namespaces of a pod where the shim's main thread cannot: a PID
// namespace needs a first process, and a process with threads cannot join a user namespace.
//
// The process runs the program of pkg/native, in a few kilobytes of memory. It makes and joins the namespaces (steps.go),
// gives up its user, its capabilities, its root and all descriptors, and sleeps until it is killed. It adopts what the
// containers of the pod leave behind, and ignores SIGCHLD, so that the kernel reaps them; no signal wakes it. It dies
// with the shim's main thread.
//
//	main thread ──start──▶ program ──fork──▶ in the PID namespace
//	                       root, network,    user, capabilities, not dumpable, dies with its parent
//	                       user, IPC, UTS
//
// # Goroutines and locks
//
// Each Holder has one goroutine, its waiter, which ends when the process is dead and waited for. There is no lock.
//
// # Promises
//
//   - When Start fails, it leaves no process, as pkg/native says.
//   - A process in the pod can neither trace the holder nor find anything of the host through it: it is not dumpable,
//     its root is empty, its mount namespace has nothing else, and its program cannot be changed.
package nsholder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/reaper"
)

// MaxHostname is the longest host name that the kernel takes.
const MaxHostname = 64

// programName is the name of the process.
const programName = "sandbox-init"

// Config says which namespaces a Holder has. Those that it does not name are the shim's.
type Config struct {
	Net  *os.File  // network namespace to join
	User *os.File  // user namespace to join
	Map  *Mappings // of a user namespace to make; not with User
	Make int       // CLONE_NEW… of clone(2) of the others to make, but for the PID namespace
	PID  bool      // make a PID namespace and be its first process

	Hostname string // "" to leave it; not without CLONE_NEWUTS
	UID, GID uint32 // to run as, in the user namespace
}

// Mappings are those of a user namespace.
type Mappings struct {
	UIDs, GIDs []specs.LinuxIDMapping
}

// Holder is the process.
type Holder struct {
	process *os.Process
	exited  chan struct{}

	// Written before exited is closed.
	status int
	at     time.Time
}

// Start starts the process and returns when it holds the namespaces, or when ctx ends.
func Start(ctx context.Context, c Config, t *osthread.Thread, reaper *reaper.Reaper) (*Holder, error) {
	request, err := c.request()
	if err != nil {
		return nil, err
	}
	program, err := native.New(programName)
	if err != nil {
		return nil, err
	}
	defer program.Close() //nolint:errcheck // the process runs it, or there is none
	var run *native.Run
	err = t.Do(ctx, func() (err error) {
		// The main thread lives as long as the shim does, and so does its child.
		run, err = program.Start(reaper, [3]*os.File{}, c.Net, c.User)
		return err
	})
	if err != nil {
		return nil, err
	}
	process, err := run.Execute(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", programName, err)
	}
	h := &Holder{process: process, exited: make(chan struct{})}
	go h.await(reaper)
	return h, nil
}

// Pid is the pid of the process.
func (h *Holder) Pid() int { return h.process.Pid }

// Exited is closed when the process is dead and has been waited for.
func (h *Holder) Exited() <-chan struct{} { return h.exited }

// Exit returns how the process ended: its exit code, or 128 and the signal. It is called after Exited is closed.
func (h *Holder) Exit() (status int, at time.Time) { return h.status, h.at }

// Kill kills the process, with all of its PID namespace, and waits for its end, or that of ctx. It can be called again.
func (h *Holder) Kill(ctx context.Context) error {
	if err := h.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill sandbox-init %d: %w", h.process.Pid, err)
	}
	select {
	case <-h.exited:
		return nil
	case <-ctx.Done(): // a process of the namespace does not die, for which the first one waits
		return fmt.Errorf("wait for the end of sandbox-init %d: %w", h.process.Pid, context.Cause(ctx))
	}
}

// await is the waiter.
func (h *Holder) await(reaper *reaper.Reaper) {
	pid := h.process.Pid
	if death, err := native.WatchDeath(pid); err == nil { // otherwise Wait takes a thread
		_ = death.Await(time.Time{})
	}
	state, err := h.process.Wait()
	h.at = time.Now()
	h.status = 255 // containerd's for an exit of which nothing is known
	if err == nil {
		status, _ := state.Sys().(syscall.WaitStatus) // it is one on every unix
		h.status = status.ExitStatus()
		if status.Signaled() {
			h.status = 128 + int(status.Signal())
		}
	}
	reaper.Unregister(pid)
	close(h.exited)
}
