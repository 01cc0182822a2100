// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package launcher runs a program in namespaces, with a root file system and rights of its own, without a second Go
// program in between. [Launcher.Create] makes a container, [Launcher.Exec] runs another process in one. A small C
// program (package native) makes the system calls in the order of libcontainer, the library of runc, and fails in
// libcontainer's words. An exec:
//
//	caller --start--> program --fork--> in the v2 cgroup --fork--> in the PID namespace --execve--> the process
//	                  signals           v1 cgroups, CPUs           session
//	                  not dumpable      namespaces, terminal
//	                                    limits, filter,
//	                                    user, capabilities
//
// The last process starts with the rights of its program, so tracing it in the PID namespace gains nothing. All that
// it has open there are the standard streams and the program's socket, which execve closes.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// ErrNotStarted means that no process was started, and that another runtime can do again what was done.
var ErrNotStarted = errors.New("the launcher cannot start a process")

// ErrNotJoined means that no process can be started in [Cgroups.Unified].
var ErrNotJoined = errors.New("error adding process to cgroup")

// notStarted is an ErrNotStarted in the words of its reason.
type notStarted struct{ error }

func (notStarted) Is(target error) bool { return target == ErrNotStarted }

func (e notStarted) Unwrap() error { return e.error }

// Launcher starts processes. Its methods may be called concurrently.
type Launcher struct {
	children native.Children
	program  *native.Program
}

// New returns a Launcher. The names of its files in /proc begin with owner. The error is errdefs.ErrNotImplemented if
// this machine cannot have one: see [native.New].
func New(owner string, children native.Children) (*Launcher, error) {
	program, err := native.New(owner, "launcher")
	if err != nil {
		return nil, err
	}
	return &Launcher{children, program}, nil
}

// Close frees the launcher. Processes that it has started continue.
func (l *Launcher) Close() error { return l.program.Close() }

// Held is the first process of a container, which waits to run its program.
type Held struct {
	*os.Process
	run *native.Run
}

// State describes a process that waits, for [Restore] in another program.
func (h *Held) State() (socket *os.File, steps, at int) { return h.run.Held() }

// Restore returns a process that another program has made and described by [Held.State].
func Restore(process *os.Process, socket *os.File, steps, at int) (*Held, error) {
	run, err := native.Hold("launcher", process, socket, steps, at)
	return &Held{process, run}, err
}

// Late reports whether a process that Resume did not see run its program still has not.
func (h *Held) Late() bool { return h.run.Late() }

// Resume lets the process run its program, once, and returns when the program has begun or the process has ended. The
// error is errdefs.ErrFailedPrecondition if the process ended before.
func (h *Held) Resume() error { return h.run.Resume() }

// Close ends a process that waits, unless it is frozen. Another one continues.
func (h *Held) Close() error { return h.run.Close() }

// Create starts the first process of a container, and returns when it waits to run its program, or when ctx ends. The
// process is a child of the caller, who waits for it and then unregisters it. c is not changed. After ErrNotStarted
// only mount points may be left, and device nodes if /dev is the image's.
func (l *Launcher) Create(ctx context.Context, c *Container) (*Held, error) {
	h, err := l.create(ctx, c, false)
	if errors.Is(err, native.ErrKilledInCgroup) {
		h, err = l.create(ctx, c, true)
	}
	return h, err
}

func (l *Launcher) create(ctx context.Context, c *Container, moves bool) (*Held, error) {
	var more []*os.File
	if c.Terminal != nil {
		more = append(more, c.Terminal.Socket)
	}
	if c.Reaped {
		file, err := l.program.Open()
		if err != nil {
			return nil, notStarted{err}
		}
		defer file.Close() //nolint:errcheck // only read
		more = append(more, file)
	}
	final := false
	request := containerRequest(c, moves, &final)
	run, err := l.start(&c.Process, more)
	if err != nil {
		return nil, err
	}
	p, err := run.Execute(ctx, request)
	if err != nil && !final {
		err = notStarted{err}
	}
	if err != nil {
		return nil, err
	}
	return &Held{p, run}, nil
}

// Exec starts a process in the namespaces of c.Target, and returns when its program has begun, or when ctx ends. The
// process is a child of the caller, who waits for it and then unregisters it. c is not changed.
func (l *Launcher) Exec(ctx context.Context, c *Process) (*os.Process, error) {
	p, err := l.exec(ctx, c, false)
	// ENOSYS: a seccomp filter on the caller forbids clone3(2).
	if errors.Is(err, native.ErrKilledInCgroup) || errors.Is(err, ErrNotJoined) && errors.Is(err, unix.ENOSYS) {
		p, err = l.exec(ctx, c, true)
	}
	return p, err
}

func (l *Launcher) exec(ctx context.Context, c *Process, moves bool) (*os.Process, error) {
	more := []*os.File{c.Target}
	if c.Terminal != nil {
		more = append(more, c.Terminal.Socket)
	}
	run, err := l.start(c, more)
	if err != nil {
		return nil, err
	}
	return run.Execute(ctx, c.request(moves))
}

func (l *Launcher) start(c *Process, more []*os.File) (*native.Run, error) {
	stdio := c.Stdio
	if slices.Contains(stdio[:], nil) {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer null.Close() //nolint:errcheck // nothing was written
		for i, f := range stdio {
			stdio[i] = cmp.Or(f, null)
		}
	}
	return l.program.Start(l.children, stdio, more...)
}
