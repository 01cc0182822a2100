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
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/reaper"
)

// Start runs c and returns when its program has begun, or when ctx ends. After an error no process of it lives, and all
// have been waited for, but for what the package's promises say. The process is a child of the caller, who owns it in
// the reaper.
func (l *Launcher) Start(ctx context.Context, c *Command) (*os.Process, error) {
	p, err := l.start(ctx, c)
	if !errors.Is(err, errStillborn) {
		return p, err
	}
	moving := *c
	moving.moves = true
	return l.start(ctx, &moving)
}

// deathTimeout is what Start waits for a process that it killed. One that sleeps uninterruptibly in a file system of
// the container is left to the reaper.
const deathTimeout = 5 * time.Second

func (l *Launcher) start(ctx context.Context, c *Command) (*os.Process, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	err = unix.SetNonblock(pair[0], true) // so that Go's poller watches it; theirs blocks
	ours := os.NewFile(uintptr(pair[0]), "socket")
	var first *os.Process
	if err == nil {
		first, err = l.begin(c, theirs)
	}
	_ = theirs.Close() // the launcher has its own
	if err != nil {
		_ = ours.Close() // nothing was sent
		if errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("%w: %w", ErrNotStarted, err)
		}
		return nil, fmt.Errorf("start launcher: %w", err)
	}
	a := &attempt{command: c, request: c.steps(), reaper: l.reaper, socket: ours, current: first}
	stop := context.AfterFunc(ctx, a.interrupt)
	err = a.run()
	interrupted := !stop()
	if err == nil && !interrupted {
		a.close()
		return a.current, nil
	}
	a.interrupt()
	if interrupted {
		err = fmt.Errorf("%w (the launcher was at: %s)", context.Cause(ctx), a.at)
	}
	a.close() // before the pid may become another process's
	if werr := awaitDeath(a.current, time.Now().Add(deathTimeout)); werr != nil {
		_ = a.current.Release() // only the reaper waits for it
		a.reaper.Unregister(a.current.Pid)
		return nil, errors.Join(err, fmt.Errorf("process %d was killed: %w", a.current.Pid, werr))
	}
	return nil, errors.Join(err, a.collect(a.current))
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
	defer l.reaper.Suspend()()
	p, err := os.StartProcess(l.path(), []string{"launcher"}, &os.ProcAttr{Env: []string{}, Files: files})
	if err == nil {
		l.reaper.Register(p.Pid)
	}
	return p, err
}

// attempt is one run of the launcher program.
type attempt struct {
	command *Command
	request *request
	reaper  *reaper.Reaper
	socket  *os.File // watched by Go's poller

	told    []uint32 // steps that are forks, of which the program told
	step    uint32   // that made current
	born    bool     // the process in Command.Unified told that it runs
	waiting int      // index of the step at which a process waits, else 0
	left    int      // steps at which one waited

	// mu guards what follows. The goroutine of Start alone changes current, and so reads it without.
	mu      sync.Mutex
	current *os.Process // the process that goes on with the steps; each one before it ended, and was waited for
	ends    *os.Process // one that is about to end, while it is waited for, else nil
	over    bool        // interrupt was called
	at      string      // what the current process did then; does not change any more
	closed  bool        // Start returns, and interrupt does nothing any more
}

func (a *attempt) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	_ = a.socket.Close() // all that counts has been read
}

// interrupt makes run end, whatever the program is doing. It can be called from any goroutine, again too.
func (a *attempt) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.over {
		return
	}
	a.over, a.at = true, place(a.current.Pid)
	if conn, err := a.socket.SyscallConn(); err == nil {
		// A process of which we do not know yet waits for our leave before it runs anything, and ends without.
		_ = conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // both ends may be closed already
	}
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
	r := a.request
	if err := a.send(r.encode()); err != nil {
		return fmt.Errorf("send request to launcher: %w", err)
	}
	for {
		if err := a.leave(); err != nil {
			return err
		}
		m, err := a.receive()
		switch {
		case errors.Is(err, io.EOF) && a.left == len(r.waits()):
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
			err = a.ready(m.step)
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

// ready notes that a process waits at the step. A process of the container that got hold of the socket could tell
// anything.
func (a *attempt) ready(step uint32) error {
	waits := a.request.waits()
	if a.waiting != 0 || a.left == len(waits) || waits[a.left] != int(step) {
		return fmt.Errorf("launcher: step %d told that it waits: must be the next that does: %w", step, errdefs.ErrInternal)
	}
	a.waiting = int(step)
	return nil
}

// leave lets the process that waits go on, once we know all that were forked before, and so itself.
func (a *attempt) leave() error {
	for i, s := range a.request.steps[:a.waiting] {
		if s.fork() && !slices.Contains(a.told, uint32(i)) {
			return nil
		}
	}
	if a.waiting == 0 {
		return nil
	}
	if grant := a.request.steps[a.waiting].grant; grant != nil {
		if err := grant(a.current.Pid); err != nil {
			return err
		}
	}
	a.waiting = 0
	a.left++
	return a.send([]byte{1})
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
	_, err := a.socket.Write(b)
	return err
}

// message is the program's struct message.
type message struct{ kind, value, step, detail uint32 }

// receive is io.EOF at the end of the program's last process or at that of the socket.
func (a *attempt) receive() (message, error) {
	var b [C.sizeof_struct_message]byte
	_, err := io.ReadFull(a.socket, b[:])
	switch {
	case errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF):
		return message{}, io.EOF
	case err != nil:
		return message{}, err
	}
	var m message
	for i, field := range []*uint32{&m.kind, &m.value, &m.step, &m.detail} {
		*field = binary.NativeEndian.Uint32(b[4*i:])
	}
	return m, nil
}
