// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

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
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/reaper"
)

// ErrKilledInCgroup is that a process was killed as soon as it was born in the cgroup of [Request.ForkInto]. Newer
// kernels (6.18 does) do that where cgroup.kill was not written as often in that cgroup as in the parent's own
// (kernel/cgroup/cgroup.c, kill_seq).
var ErrKilledInCgroup = errors.New("the process was killed when it was born in the cgroup")

// deathTimeout is how long Execute waits for a process that it killed. The reaper collects one that sleeps
// uninterruptibly in a file system of a container.
const deathTimeout = 5 * time.Second

// Run is one run of the program. Execute is called once.
type Run struct {
	name    string
	reaper  *reaper.Reaper
	socket  *os.File // watched by Go's poller
	request *Request

	reported []*Step // forks whose child was reported
	inCgroup bool    // the child of ForkInto reported that it runs
	waiting  *Step   // at which a process waits; else nil
	waits    []*Step // at which one will
	failed   *Step   // which failed; else nil
	failure  error   // its

	// mu guards what follows. The goroutine of Execute alone writes current and fork, and reads them without.
	mu          sync.Mutex
	current     *os.Process // goes on with the steps; each one before it has been waited for
	fork        *Step       // that made current
	ending      *os.Process // one that is about to end and is waited for; else nil
	interrupted bool
	place       string // what current did when it was interrupted; does not change after that
	closed      bool   // Execute returns, and interrupt does nothing any more
}

// Execute sends the request and returns the process that runs its program, or that sleeps. The caller owns it in the
// reaper. An error is that of the first step that failed, or the cause of the context's end.
func (r *Run) Execute(ctx context.Context, request *Request) (*os.Process, error) {
	r.request = request
	for _, s := range request.steps {
		if s.op == C.OP_WAIT {
			r.waits = append(r.waits, s)
		}
	}
	stop := context.AfterFunc(ctx, r.interrupt)
	err := r.follow()
	interrupted := !stop()
	if err == nil && !interrupted {
		r.close()
		return r.current, nil
	}
	r.interrupt()
	if interrupted {
		err = fmt.Errorf("%w (the %s was at: %s)", context.Cause(ctx), r.name, r.place)
	}
	r.close() // before the pid may become another process's
	if werr := awaitDeath(r.current.Pid, time.Now().Add(deathTimeout)); werr != nil {
		_ = r.current.Release() // only the reaper waits for it
		r.reaper.Unregister(r.current.Pid)
		return nil, errors.Join(err, fmt.Errorf("process %d was killed: %w", r.current.Pid, werr))
	}
	return nil, errors.Join(err, r.collect(r.current))
}

func (r *Run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	_ = r.socket.Close() // all that counts has been read
}

// interrupt makes follow end, whatever the program is doing. It can be called from any goroutine, and again.
func (r *Run) interrupt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.interrupted {
		return
	}
	r.interrupted, r.place = true, placeOf(r.current.Pid)
	if conn, err := r.socket.SyscallConn(); err == nil {
		// A process that was not reported yet reads the end of the socket when it waits, and ends.
		_ = conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // may be closed already
	}
	r.kill(r.current)
	if r.ending != nil {
		r.kill(r.ending)
	}
}

// kill ends p, which was not waited for, also where it is frozen.
func (r *Run) kill(p *os.Process) {
	_ = p.Kill() // dead already is as good
	if r.request.Thaw != "" {
		_ = os.WriteFile(r.request.Thaw, []byte(strconv.Itoa(p.Pid)), 0) // so is gone
	}
}

// follow sends the request and follows the program through its messages until it runs another one, or sleeps.
func (r *Run) follow() error {
	if _, err := r.socket.Write(r.request.Encode()); err != nil {
		return fmt.Errorf("send request to %s: %w", r.name, err)
	}
	for {
		m, err := r.receive()
		if errors.Is(err, io.EOF) && len(r.waits) == 0 && r.waiting == nil && r.failed == nil {
			return nil // execve closed the socket, or OP_SLEEP did
		}
		if err == nil && m.kind == C.MESSAGE_NOT_RUN {
			return r.printNotRun(m)
		} else if err == nil {
			err = r.handle(m)
		} else if errors.Is(err, io.EOF) {
			err = r.death()
		}
		// A child may be faster than its parent: its own is reported first where possible, so that it is waited for.
		if r.failed != nil && (err != nil || r.knows(r.failed)) {
			return r.failure
		}
		if err != nil {
			return err
		}
	}
}

// death is the error of a process that ended without a message.
func (r *Run) death() error {
	if r.fork != nil && r.fork.args[0].value != 0 && !r.inCgroup {
		return ErrKilledInCgroup
	}
	return fmt.Errorf("the %s was killed: %w", r.name, errdefs.ErrAborted)
}

// printNotRun has the process print why execve(2) failed, after which it ends.
func (r *Run) printNotRun(m message) error {
	last := r.request.steps[len(r.request.steps)-1]
	_, err := r.socket.Write([]byte(last.explain(unix.Errno(m.value), m.detail).Error() + "\n"))
	return err
}

// handle refuses what the program would not report: a process of the container that got hold of the socket could send
// anything.
func (r *Run) handle(m message) error {
	if int(m.step) >= len(r.request.steps) {
		return fmt.Errorf("%s: step %d of %d: %w", r.name, m.step, len(r.request.steps), unix.Errno(m.value))
	}
	s := r.request.steps[m.step]
	switch m.kind {
	case C.MESSAGE_PID:
		if err := r.followChild(int(m.value), s); err != nil {
			return err
		}
		return r.letGo()
	case C.MESSAGE_IN_CGROUP:
		r.inCgroup = true
		return nil
	case C.MESSAGE_WAITING:
		if r.waiting != nil || len(r.waits) == 0 || r.waits[0] != s {
			return fmt.Errorf("%s: step %d waits: must be the next that does: %w", r.name, m.step, errdefs.ErrInternal)
		}
		r.waiting, r.waits = s, r.waits[1:]
		return r.letGo()
	}
	r.failed, r.failure = s, s.explain(unix.Errno(m.value), m.detail)
	return nil
}

// knows reports whether the children of all forks before the step were reported.
func (r *Run) knows(s *Step) bool {
	return !slices.ContainsFunc(r.request.steps[:s.index], func(earlier *Step) bool {
		return earlier.op == C.OP_FORK && !slices.Contains(r.reported, earlier)
	})
}

// letGo lets the process that waits go on, if one does and is known.
func (r *Run) letGo() error {
	if r.waiting == nil || !r.knows(r.waiting) {
		return nil
	}
	if grant := r.waiting.grant; grant != nil {
		if err := grant(r.current.Pid); err != nil {
			return err
		}
	}
	r.waiting = nil
	_, err := r.socket.Write([]byte{1})
	return err
}

// followChild waits for the process that ends at the fork and goes on with its child. The child of a later fork may
// have been reported before.
func (r *Run) followChild(pid int, fork *Step) error {
	if fork.op != C.OP_FORK || slices.Contains(r.reported, fork) {
		return fmt.Errorf("%s: step %d made process %d: must be a fork that was not reported: %w",
			r.name, fork.index, pid, errdefs.ErrInternal)
	}
	child, err := r.claim(pid)
	if err != nil {
		return fmt.Errorf("%s: step %d made process %d: %w", r.name, fork.index, pid, err)
	}
	r.reported = append(r.reported, fork)

	ending := child
	r.mu.Lock()
	if r.fork == nil || fork.index > r.fork.index {
		ending, r.current, r.fork = r.current, child, fork
	}
	r.ending = ending
	if r.interrupted {
		r.kill(child)
	}
	r.mu.Unlock()

	if err := awaitDeath(ending.Pid, time.Time{}); err != nil {
		return fmt.Errorf("wait for process %d: %w", ending.Pid, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = nil
	return r.collect(ending)
}

// claim makes a child one that only we wait for.
func (r *Run) claim(pid int) (*os.Process, error) {
	if !r.reaper.Register(pid) {
		return nil, fmt.Errorf("must be a child without an owner: %w", errdefs.ErrInternal)
	}
	p, err := os.FindProcess(pid)
	if err == nil {
		err = isChild(p)
	}
	if err != nil {
		r.reaper.Unregister(pid)
		// The reaper may have collected it.
		return nil, fmt.Errorf("must be a child of ours, and live: %w: %w", err, errdefs.ErrAborted)
	}
	return p, nil
}

// collect waits for p, which is dead.
func (r *Run) collect(p *os.Process) error {
	defer r.reaper.Unregister(p.Pid)
	if _, err := p.Wait(); err != nil {
		return fmt.Errorf("wait for process %d: %w", p.Pid, err)
	}
	return nil
}

// message is the program's struct message.
type message struct{ kind, value, step, detail uint32 }

// receive returns io.EOF at the end of the program's last process.
func (r *Run) receive() (message, error) {
	var b [C.sizeof_struct_message]byte
	_, err := io.ReadFull(r.socket, b[:])
	switch {
	case errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF):
		return message{}, io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		return message{}, fmt.Errorf("read from %s: %w", r.name, err)
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[4*i:]) }
	return message{word(0), word(1), word(2), word(3)}, err
}
