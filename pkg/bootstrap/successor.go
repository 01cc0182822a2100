// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/osthread"
)

// SavedDaemon is a Daemon in the state for a successor, which has Args in its arguments.
type SavedDaemon struct {
	Bundle       string
	TTRPCAddress string
	SocketPath   string
	Options      options.Options
	Settings     map[string]string `json:",omitempty"` // Options.Settings and File, which are not written as options
	File         string            `json:",omitempty"`
	Umask        int
	Sent         []byte `json:",omitempty"` // encoded
	Digest       uint64
	Answer       []byte
	Listener     handover.FD
}

// Save returns the daemon for a successor.
func (d Daemon) Save(h *handover.Saver, l idle.Listener) SavedDaemon {
	var sent []byte
	if d.Sent != nil {
		sent, _ = proto.Marshal(d.Sent) // it was decoded
	}
	return SavedDaemon{
		d.Bundle, d.TTRPCAddress, d.SocketPath, d.Options, d.Options.Settings, d.Options.File, d.Umask,
		sent, d.Digest, d.Answer, h.Keep(l),
	}
}

// Arguments returns the command line of a successor, without the program and the action.
func (a Args) Arguments() []string { return daemonArgs(a) }

// Successor restores a daemon, and lets it serve. Nothing has changed when restore returns. serve begins with what
// cannot fail.
type Successor struct {
	Saved   *SavedDaemon
	Restore func(Daemon, idle.Listener) (serve func(context.Context) error, err error)
}

// TakeOver goes on with the state that a former program of this process has left in file. load reads the state. If
// anything fails before the successor serves, the former program is executed again. With check, nothing goes on: the
// state is that of another process, and the error says why this program cannot go on with it.
func TakeOver(a Args, file *os.File, check bool, load func(*os.File) (*handover.Loader, Successor, error)) error {
	gc := debug.SetGCPercent(-1) // a collection would take longer than all the rest
	return osthread.Main(func(t *osthread.Thread) error {
		l, serve, listener, d, err := restore(a, t, file, check, load)
		switch {
		case check:
			return err
		case err != nil:
			err = t.Do(func() error { return errors.Join(err, handover.Return(l, file, daemonArgs(a), err)) })
			if d.Bundle != "" { // else nothing is known, not even a log
				defer logToFifo(d.Bundle, a)()
				log.L.WithError(err).Error("shim ended: it cannot go on with the state of its former program")
			}
			return err
		}
		_ = t.Do(nameThread) // the name of a program that was executed by a descriptor is a number
		dropSignals()
		return runServe(d, listener, func(ctx context.Context, _ Daemon, _ idle.Listener) error {
			debug.SetGCPercent(gc)
			return serve(ctx)
		})
	})
}

func restore(
	a Args, t *osthread.Thread, file *os.File, check bool, load func(*os.File) (*handover.Loader, Successor, error),
) (l *handover.Loader, serve func(context.Context) error, s *listener, d Daemon, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s: %w", p, debug.Stack(), errdefs.ErrInternal)
		}
	}()
	l, successor, err := load(file)
	if err != nil {
		return l, nil, nil, d, err
	}
	saved := successor.Saved
	d = Daemon{
		Args: a, Bundle: saved.Bundle, TTRPCAddress: saved.TTRPCAddress, SocketPath: saved.SocketPath, Thread: t,
		Options: saved.Options, Umask: saved.Umask, Digest: saved.Digest, Answer: saved.Answer,
	}
	d.Options.Settings, d.Options.File = saved.Settings, saved.File
	if saved.Sent != nil {
		d.Sent = &anypb.Any{}
		if err := proto.Unmarshal(saved.Sent, d.Sent); err != nil {
			return l, nil, nil, d, err
		}
	}
	if !check {
		defer logToFifo(d.Bundle, a)()
	}
	socket, err := l.File(saved.Listener, "listener")
	if err == nil {
		l.CloseLater(socket)
		s, err = newListener(socket)
	}
	if err == nil {
		serve, err = successor.Restore(d, s)
	}
	return l, serve, s, d, err
}

// nameThread gives the first thread the name that ps shows.
func nameThread() error {
	name, err := unix.BytePtrFromString(Program)
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
}
