// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package native runs lists of system calls in a process without the Go runtime: it has one thread, can fork, and has
// nothing of the caller in its memory. [Program.Start] runs the program, seven kilobytes of C without a library, and
// [Run.Execute] sends it a [Request].
//
// A fork makes a child of the caller (CLONE_PARENT), and the process that forked ends. At [Request.Wait] a process
// stops until the caller knows all processes that were forked before, and has suspended or told [Children].
//
// If Execute fails or its context ends, none of its processes is left, even if they are frozen, except for one that
// does not exit within seconds of SIGKILL, and one whose parent was killed before reporting it: the reaper collects
// both.
package native

// #include "arch.h"
// #include "program.h"
import "C"

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// What callers have to know about the program to predict its system calls.
const (
	Socket      = C.FD_SOCKET             // its descriptor of the socket to the caller; files of the caller follow it
	MessageSize = C.sizeof_struct_message // what it writes there before it reads a byte at [Request.Wait]
	AuditArch   = C.NATIVE_AUDIT_ARCH     // AUDIT_ARCH_… of the processor, see seccomp(2)
)

// Children tells the rest of this program which child processes are ours: nobody else waits for these. See [NoOthers].
type Children interface {
	// Suspend keeps others from waiting for any child until resume is called, once.
	Suspend() (resume func())
	// Register says that only the caller waits for pid. It reports whether pid was not registered before.
	Register(pid int) bool
	// Unregister says that pid was waited for, or that others are to wait for it.
	Unregister(pid int)
}

// NoOthers is Children for a program that waits for no children but those that it started itself.
type NoOthers struct{}

// Suspend implements [Children].
func (NoOthers) Suspend() (resume func()) { return func() {} }

// Register implements [Children].
func (NoOthers) Register(int) bool { return true }

// Unregister implements [Children].
func (NoOthers) Unregister(int) {}

// Start starts the program with these standard streams, and with more as its descriptors from [Socket] + 1 on; nil for
// none. The program does nothing until Execute, which must be called.
func (p *Program) Start(children Children, stdio [3]*os.File, more ...*os.File) (*Run, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	_ = unix.SetNonblock(pair[0], true) // a valid one; so Go's poller watches it
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close() //nolint:errcheck // the program has its own
	files := append([]*os.File{stdio[0], stdio[1], stdio[2], theirs}, more...)
	defer children.Suspend()()
	first, err := os.StartProcess(pathOf(p.file), []string{p.name}, &os.ProcAttr{Env: []string{}, Files: files})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.name, err), ours.Close())
	}
	children.Register(first.Pid)
	return &Run{name: p.name, children: children, socket: ours, current: first}, nil
}
