// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package nsholder

/*
#include "program.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/memprog"
	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/reaper"
)

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
	program, entry := code()
	file, err := memprog.New("sandbox-init", program, entry)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // the process runs it, or there is none
	socket, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer socket.Close() //nolint:errcheck // all that counts was read and written
	defer reaper.Suspend()()
	a := attempt{config: c, socket: socket}
	err = t.Do(ctx, func() (err error) {
		// The main thread lives as long as the process, and so does its child.
		a.current, err = os.StartProcess("/proc/self/fd/"+strconv.Itoa(int(file.Fd())), []string{"sandbox-init"}, &os.ProcAttr{
			Dir: "/", Env: []string{}, Files: []*os.File{nil, nil, nil, theirs, c.Net, c.User},
		})
		return err
	})
	_ = theirs.Close() // the program has its own
	if err != nil {
		return nil, fmt.Errorf("start sandbox-init: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetDeadline(time.Unix(1, 0)) }) // no error: the socket can have one
	err = a.run(request)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox-init: %w", err), a.end())
	}
	h := &Holder{process: a.current, exited: make(chan struct{})}
	reaper.Register(h.Pid())
	go h.await(reaper)
	return h, nil
}

// socketpair makes a pair of which each message is read as a whole; reads of ours can be interrupted.
func socketpair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "holder")
	if err := unix.SetNonblock(pair[0], true); err != nil {
		_ = unix.Close(pair[0]) // nothing was sent
		return nil, nil, errors.Join(os.NewSyscallError("fcntl", err), theirs.Close())
	}
	return os.NewFile(uintptr(pair[0]), "shim"), theirs, nil
}

// attempt is one run of the program until it holds the namespaces.
type attempt struct {
	config  Config
	socket  *os.File
	current *os.Process // the process that goes on; the one before it was waited for
}

// run follows the program through its messages.
func (a *attempt) run(request []byte) error {
	if _, err := a.socket.Write(request); err != nil {
		return err
	}
	// Both must have come before it may go on: the child that is ready may be faster than its parent, which tells of it,
	// and one that went on could not be ended by who does not know it.
	ready, known, left := false, !a.config.PID, false
	var failed error // of a child of which its parent has not told
	for {
		if ready && known && !left {
			if err := a.leave(); err != nil {
				return err
			}
			left = true
		}
		m, err := readMessage(a.socket)
		switch {
		case errors.Is(err, io.EOF) && left:
			return nil // it has closed all that it had
		case errors.Is(err, io.EOF) && failed != nil:
			return failed
		case errors.Is(err, io.EOF):
			return fmt.Errorf("it was killed: %w", errdefs.ErrAborted)
		case err != nil:
			return err
		}
		switch m.kind {
		case C.MESSAGE_MAP:
			if err := a.config.Map.write(a.current.Pid); err != nil {
				return err
			}
			err = a.leave()
		case C.MESSAGE_PID:
			known = true
			err = a.follow(int(m.value))
		case C.MESSAGE_READY:
			ready = true
		default:
			if err = m.failure(); !known {
				failed, err = err, nil // its parent is still to tell of it
			}
		}
		if err != nil {
			return err
		}
	}
}

// leave lets the program go on.
func (a *attempt) leave() error {
	_, err := a.socket.Write([]byte{1})
	return err
}

// follow waits for the current process, which ends, and goes on with its child pid, which is a child of the shim.
func (a *attempt) follow(pid int) error {
	next, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	ends := a.current
	a.current = next
	_, err = ends.Wait()
	return err
}

// end kills the current process and waits for it.
func (a *attempt) end() error {
	if err := a.current.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_, err := a.current.Wait()
	return err
}

// Pid is the process's.
func (h *Holder) Pid() int { return h.process.Pid }

// Exited is closed when the process is dead and has been waited for.
func (h *Holder) Exited() <-chan struct{} { return h.exited }

// Exit is how the process ended: its exit code, or 128 and the signal. It is called after Exited is closed.
func (h *Holder) Exit() (status int, at time.Time) { return h.status, h.at }

// Kill ends the process, with all of its PID namespace, and waits for that as long as ctx lets it. It can be called
// again.
func (h *Holder) Kill(ctx context.Context) error {
	if err := h.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill sandbox-init %d: %w", h.process.Pid, err)
	}
	select {
	case <-h.exited:
		return nil
	case <-ctx.Done(): // a process of the namespace does not die, and the first one waits for it
		return fmt.Errorf("wait for the end of sandbox-init %d: %w", h.process.Pid, context.Cause(ctx))
	}
}

// await is the waiter.
func (h *Holder) await(reaper *reaper.Reaper) {
	pid := h.process.Pid
	state, err := h.process.Wait()
	h.at = time.Now()
	h.status = 255 // as containerd reports an exit of which nothing is known
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
