// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Start runs c and returns when its program has begun, or when ctx ends. After an error no process of it lives, and all
// have been waited for, but for what the package's promises say. The process is a child of the caller.
func (l *Launcher) Start(ctx context.Context, c *Command) (*os.Process, error) {
	p, err := l.start(ctx, c)
	if !errors.Is(err, errStillborn) {
		return p, err
	}
	moving := *c
	moving.moves = true
	return l.start(ctx, &moving)
}

func (l *Launcher) start(ctx context.Context, c *Command) (*os.Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "socket")
	first, err := l.begin(c, theirs)
	_ = theirs.Close() // the launcher has its own
	if err != nil {
		_ = unix.Close(ours) // nothing was sent
		if errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("%w: %w", ErrNotStarted, err)
		}
		return nil, fmt.Errorf("start launcher: %w", err)
	}
	a := &attempt{command: c, socket: ours, current: first}
	stop := context.AfterFunc(ctx, a.interrupt)
	err = a.run()
	interrupted := !stop()
	switch {
	case interrupted:
		err = errors.Join(context.Cause(ctx), err)
	case err == nil:
		a.close()
		return a.current, nil
	}
	a.interrupt()
	a.close() // before the pid may become another process's
	_, werr := a.current.Wait()
	return nil, errors.Join(err, werr)
}

// begin starts the program.
func (l *Launcher) begin(c *Command, socket *os.File) (*os.Process, error) {
	files := []*os.File{c.Stdio[0], c.Stdio[1], c.Stdio[2], socket, c.Init}
	if c.Terminal != nil {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer null.Close() //nolint:errcheck // nothing was written
		files = []*os.File{null, null, null, socket, c.Init, c.Terminal.Socket}
		if c.Stdio[2] != nil {
			files[2] = c.Stdio[2]
		}
	}
	return os.StartProcess(l.path(), []string{"launcher"}, &os.ProcAttr{Env: []string{}, Files: files})
}

// attempt is one run of the launcher program.
type attempt struct {
	command *Command
	socket  int // blocking

	told []uint32 // steps that are forks, of which the program told
	step uint32   // that made current
	born bool     // the process in Command.Unified told that it runs

	// mu guards what follows. The goroutine of Start alone changes current, and so reads it without.
	mu      sync.Mutex
	current *os.Process // the process that goes on with the steps; each one before it ended, and was waited for
	ends    *os.Process // one that is about to end, while it is waited for, else nil
	over    bool        // interrupt was called
	closed  bool        // Start returns, and interrupt does nothing any more
}

func (a *attempt) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	_ = unix.Close(a.socket) // all that counts has been read
}

// interrupt makes run end, whatever the program is doing. It can be called from any goroutine, again too.
func (a *attempt) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.over = true
	// A process of which we do not know yet waits for our leave before it runs anything, and ends without.
	_ = unix.Shutdown(a.socket, unix.SHUT_RDWR) // both ends may be closed already
	a.kill(a.current)
	if a.ends != nil {
		a.kill(a.ends)
	}
}

// kill ends p, which was not waited for, also where it is frozen.
func (a *attempt) kill(p *os.Process) {
	_ = p.Kill() // dead already is as good
	if a.command.Freezer != "" {
		// What is frozen does not die (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst). Gone is as good.
		_ = os.WriteFile(filepath.Join(filepath.Dir(a.command.Freezer), "cgroup.procs"), []byte(decimal(p.Pid)), 0)
	}
}

// run sends the request and follows the program until it has become that of the container.
func (a *attempt) run() error {
	r := a.command.steps()
	if err := a.send(r.encode()); err != nil {
		return fmt.Errorf("send request to launcher: %w", err)
	}
	ready, allowed := false, false
	for {
		if ready && !allowed && len(a.told) == r.forks() {
			if err := a.allow(); err != nil {
				return err
			}
			allowed = true
		}
		m, err := a.receive()
		switch {
		case errors.Is(err, io.EOF) && allowed:
			return nil // execve closed the socket
		case errors.Is(err, io.EOF) && len(a.told) == 1 && a.command.Unified != "" && !a.command.moves && !a.born:
			return errStillborn
		case errors.Is(err, io.EOF):
			return errDied
		case err != nil:
			return fmt.Errorf("read from launcher: %w", err)
		}
		switch m.kind {
		case C.MESSAGE_PID:
			err = a.follow(r, int(m.value), m.step)
		case C.MESSAGE_BORN:
			a.born = true
		case C.MESSAGE_READY:
			ready = true
		case C.MESSAGE_NOT_RUN:
			// libcontainer cannot tell this either, since it is too late for its own words.
			return a.notRun(unix.Errno(m.value), int(m.detail))
		default:
			err = a.failure(r, m)
		}
		if err != nil {
			return err
		}
	}
}

var (
	errDied = errors.New("the launcher was killed")
	// newer kernels (6.18 does) do it where cgroup.kill was not written as often in the cgroup as in the launcher's own
	// (kernel/cgroup/cgroup.c, kill_seq).
	errStillborn = errors.New("the launcher was killed when it was born in the cgroup")
)

func (a *attempt) failure(r *request, m message) error {
	if int(m.step) >= len(r.steps) {
		return fmt.Errorf("launcher: step %d of %d: %w", m.step, len(r.steps), unix.Errno(m.value))
	}
	return r.steps[m.step].explain(unix.Errno(m.value), m.detail)
}

// allow sets what only the shim may, and lets the program go on.
func (a *attempt) allow() error {
	for _, l := range a.command.Rlimits {
		if err := unix.Prlimit(a.current.Pid, l.Resource, &unix.Rlimit{Cur: l.Soft, Max: l.Hard}, nil); err != nil {
			return fmt.Errorf("error setting rlimits for ready process: error setting rlimit type %d: %w", l.Resource, err)
		}
	}
	return a.send([]byte{1})
}

// notRun gives the program the words to print before it ends.
func (a *attempt) notRun(errno unix.Errno, index int) error {
	paths, _ := a.command.paths()
	if index >= len(paths) {
		return fmt.Errorf("launcher: path %d of %d: %w", index, len(paths), errno)
	}
	err := &fs.PathError{Op: "exec", Path: paths[index], Err: errno}
	return a.send([]byte(err.Error() + "\n"))
}

func (a *attempt) send(b []byte) error {
	for len(b) > 0 {
		n, err := unix.SendmsgN(a.socket, b, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("sendmsg", err)
		}
		b = b[n:]
	}
	return nil
}

// message is the program's struct message.
type message struct{ kind, value, step, detail uint32 }

// receive is io.EOF at the end of the program's last process or at that of the socket.
func (a *attempt) receive() (message, error) {
	var b [C.sizeof_struct_message]byte
	for have := 0; have < len(b); {
		n, err := unix.Read(a.socket, b[have:])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECONNRESET || err == nil && n == 0:
			return message{}, io.EOF
		case err != nil:
			return message{}, os.NewSyscallError("read", err)
		}
		have += n
	}
	var m message
	for i, field := range []*uint32{&m.kind, &m.value, &m.step, &m.detail} {
		*field = binary.NativeEndian.Uint32(b[4*i:])
	}
	return m, nil
}
