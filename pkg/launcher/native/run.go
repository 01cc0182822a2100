// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package native

// #include "program.h"
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
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ErrKilledInCgroup means that the kernel killed a process as it was forked into the cgroup of [Request.ForkInto]:
// Linux 6.18 does if the parent's cgroup was killed more often (kernel/cgroup/cgroup.c, kill_seq).
var ErrKilledInCgroup = errors.New("the process was killed when it was forked into the cgroup")

const (
	deathTimeout  = 5 * time.Second // in which a process that was killed exits, unless it sleeps in a file system
	resumeTimeout = 2 * time.Second // for which Resume waits for the program of a process
)

// Run is one run of the program. The goroutine of Execute, which is called once, owns it.
type Run struct {
	name     string
	children Children
	socket   *os.File // watched by Go's poller
	request  *Request

	current  *os.Process // continues with the steps
	ending   *os.Process // is about to end; nil once it has been reaped
	fork     *Step       // that made current
	inCgroup bool        // the child of ForkInto reported that it runs
	waiting  *Step       // at which a process waits; else nil
	resumed  *Step       // the Hold that Resume ended, until the process confirms that; else nil
	failed   *Step       // that failed; else nil
	failure  error       // the error of failed

	late chan struct{} // closed when a process that Resume did not see continue did, or ended; nil: there was none
}

// Execute sends the request and returns the process that runs its program, that sleeps, or that is held. The caller
// owns it in the reaper. The error is that of the first step that failed, or the cause of the context's end.
func (r *Run) Execute(ctx context.Context, request *Request) (*os.Process, error) {
	r.request = request
	stop := context.AfterFunc(ctx, func() { _ = r.socket.SetDeadline(time.Unix(1, 0)) }) // fails only if closed
	err := fmt.Errorf("a string with a zero byte: %w", unix.EINVAL)
	if !request.hasZero {
		_, err = r.socket.Write(request.Encode())
	}
	switch {
	case err == nil:
		err = r.follow(ctx)
	case errors.Is(err, unix.EPIPE) && r.readFailure():
		err = r.failure
	case errors.Is(err, unix.EPIPE):
		err = r.death()
	}
	stop()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = errors.Join(err, r.kill(r.current), r.kill(r.ending), r.killUnread())
	}
	if err != nil || !r.held() {
		// All that matters has been read. A process that was not reported reads EOF when it waits, and ends.
		_ = r.socket.Close()
	}
	if err != nil {
		return nil, err
	}
	return r.current, nil
}

// killUnread kills the children in messages that nobody has read: a frozen one would not read EOF.
func (r *Run) killUnread() (err error) {
	for {
		_ = r.socket.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // fails only if closed
		m, end := r.receive()
		if end != nil {
			return err
		}
		if m.Kind != C.MESSAGE_PID {
			continue
		}
		if child, failed := r.claim(int(m.Value)); failed == nil { // else it is dead, or not ours
			err = errors.Join(err, r.kill(child))
		}
	}
}

// Resume lets a held process continue, and returns when its program runs or has ended, or after 2 s. It is called once.
// The error is errdefs.ErrFailedPrecondition if the process ended before.
func (r *Run) Resume() error {
	if _, err := r.socket.Write([]byte{1}); err != nil {
		return errors.Join(fmt.Errorf("the %s ended: %w: %w", r.name, err, errdefs.ErrFailedPrecondition), r.socket.Close())
	}
	r.resumed, r.waiting = r.waiting, nil
	_ = r.socket.SetReadDeadline(time.Now().Add(resumeTimeout)) // fails only if closed
	resumed := *r
	*r = Run{socket: r.socket} // the request holds everything that it was made from
	err := resumed.follow(context.Background())
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if resumed.current.Signal(unix.Signal(0)) == nil {
			r.late = make(chan struct{})
			go resumed.finish(r.late)
			return nil
		}
		err = fmt.Errorf("the %s was killed: %w", resumed.name, errdefs.ErrFailedPrecondition)
	}
	return errors.Join(err, resumed.socket.Close())
}

// finish follows a resumed process that is late, since it has no CPU time, its program is on a slow disk, or a
// privileged process of the container took the socket. A process that cannot say that it continues would end. finish
// ends with the program's begin, the process's end, or Close.
func (r *Run) finish(done chan<- struct{}) {
	defer close(done)
	_ = r.socket.SetReadDeadline(time.Time{}) // fails only if closed
	_ = r.follow(context.Background())        // the process tells its own end
	_ = r.socket.Close()
}

// Late reports whether a process that Resume did not see continue still has not.
func (r *Run) Late() bool {
	select {
	case <-r.late:
		return false
	default:
		return r.late != nil
	}
}

// Held describes the run of a held process, for [Hold] in another program: the socket, how many steps the request has,
// and the one at which the process waits.
func (r *Run) Held() (socket *os.File, steps, at int) {
	return r.socket, len(r.request.steps), int(r.waiting.index)
}

// Hold returns the run of a process that another program has started and described by [Run.Held].
func Hold(name string, process *os.Process, socket *os.File, steps, at int) (*Run, error) {
	const most = 1 << 16 // more than any request has
	if at < 0 || at >= steps || steps > most {
		return nil, fmt.Errorf("%s: step %d of %d: %w", name, at, steps, errdefs.ErrInvalidArgument)
	}
	r := &Run{name: name, children: NoOthers{}, socket: socket, current: process, request: &Request{}}
	for i := range steps {
		s := r.request.add(C.OP_CALL).OnError("run the program")
		s.reported = i <= at
	}
	r.waiting = r.request.steps[at]
	r.waiting.op = C.OP_HOLD
	return r, nil
}

// Close ends a process that is held, unless it is frozen, and one that Resume did not see continue.
func (r *Run) Close() error { return r.socket.Close() }

// held reports whether the process waits at [Request.Hold].
func (r *Run) held() bool { return r.waiting != nil && r.waiting.op == C.OP_HOLD }

// kill kills p, even if it is frozen, and waits for it. p may be nil.
func (r *Run) kill(p *os.Process) error {
	if p == nil {
		return nil
	}
	_ = p.Kill() // it may be dead already
	if r.request.Thaw != "" {
		_ = os.WriteFile(r.request.Thaw, []byte(strconv.Itoa(p.Pid)), 0) // or gone
	}
	ctx, cancel := context.WithTimeout(context.Background(), deathTimeout)
	defer cancel()
	pid := p.Pid // which Release forgets
	if err := AwaitDeath(ctx, pid); err != nil {
		_ = p.Release() // only the reaper waits for it
		r.children.Unregister(pid)
		return fmt.Errorf("process %d was killed: %w", pid, err)
	}
	return r.collect(p)
}

// collect reaps p, which has exited.
func (r *Run) collect(p *os.Process) error {
	defer r.children.Unregister(p.Pid)
	if _, err := p.Wait(); err != nil {
		return fmt.Errorf("wait for process %d: %w", p.Pid, err)
	}
	return nil
}

// follow follows the program through its messages until it runs another program, sleeps, or is held.
func (r *Run) follow(ctx context.Context) error {
	for {
		m, err := r.receive()
		switch {
		case errors.Is(err, io.EOF) && r.nextWait() == nil && r.waiting == nil && r.resumed == nil && r.failed == nil:
			return nil // execve closed the socket, or OP_SLEEP did
		case errors.Is(err, io.EOF) && r.resumed != nil:
			return fmt.Errorf("the %s was killed: %w", r.name, errdefs.ErrFailedPrecondition)
		case errors.Is(err, io.EOF):
			err = r.death()
		case err == nil && m.Kind == C.MESSAGE_NOT_RUN: // the process prints why, and ends
			last := r.request.steps[len(r.request.steps)-1]
			_, err = fmt.Fprintln(r.socket, last.explain(unix.Errno(m.Value), m.Detail))
			return err
		case err == nil:
			err = r.handle(ctx, m)
		}
		// A child may be faster than its parent, which reports it so that it can be waited for.
		if r.failed != nil && (err != nil || r.knows(r.failed)) {
			return r.failure
		}
		if err != nil || (r.held() && r.knows(r.waiting)) {
			return err
		}
	}
}

// death returns the error of a process that ended without a message.
func (r *Run) death() error {
	if r.fork != nil && r.diedAtBirth(r.fork) {
		return ErrKilledInCgroup
	}
	return fmt.Errorf("the %s was killed: %w", r.name, errdefs.ErrAborted)
}

// diedAtBirth reports whether the child of a fork, which is dead, never ran in the cgroup that it was forked into.
func (r *Run) diedAtBirth(fork *Step) bool { return fork.args[0] != 0 && !r.inCgroup }

// handle processes a message, and refuses what the program would not report: a process of the container that got hold
// of the socket could send anything.
func (r *Run) handle(ctx context.Context, m message) error {
	if int(m.Step) >= len(r.request.steps) {
		return fmt.Errorf("%s: step %d of %d: %w", r.name, m.Step, len(r.request.steps), unix.Errno(m.Value))
	}
	s := r.request.steps[m.Step]
	switch m.Kind {
	case C.MESSAGE_PID:
		if err := r.followChild(ctx, int(m.Value), s); err != nil {
			return err
		}
		return r.letGo()
	case C.MESSAGE_IN_CGROUP:
		r.inCgroup = true
		return nil
	case C.MESSAGE_RESUMED:
		r.resumed = nil
		return nil
	case C.MESSAGE_WAITING:
		if r.waiting != nil || s != r.nextWait() {
			return fmt.Errorf("%s: step %d waits: must be the next that does: %w", r.name, m.Step, errdefs.ErrInternal)
		}
		r.waiting, s.reported = s, true
		return r.letGo()
	}
	r.fail(m)
	return nil
}

// readFailure reads on to the end or to the message of a step that failed, and reports whether there was one.
func (r *Run) readFailure() bool {
	for r.failed == nil {
		m, err := r.receive()
		if err != nil || int(m.Step) >= len(r.request.steps) {
			return false
		}
		if m.Kind == C.MESSAGE_FAILED {
			r.fail(m)
		}
	}
	return true
}

func (r *Run) fail(m message) {
	r.failed = r.request.steps[m.Step]
	r.failure = r.failed.explain(unix.Errno(m.Value), m.Detail)
}

// next returns the first step of these operations that was not reported.
func (r *Run) next(ops ...uint64) *Step {
	for _, s := range r.request.steps {
		if !s.reported && slices.Contains(ops, s.op) {
			return s
		}
	}
	return nil
}

func (r *Run) nextWait() *Step { return r.next(C.OP_WAIT, C.OP_HOLD) }

// knows reports whether the children of all forks before the step were reported.
func (r *Run) knows(s *Step) bool {
	fork := r.next(C.OP_FORK)
	return fork == nil || fork.index > s.index
}

// letGo lets the waiting process continue, if there is one that is known and not held.
func (r *Run) letGo() error {
	if r.waiting == nil || r.held() || !r.knows(r.waiting) {
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

// followChild waits for the process that ends at the fork and continues with its child. The child of a later fork may
// have been reported before.
func (r *Run) followChild(ctx context.Context, pid int, fork *Step) error {
	if fork.op != C.OP_FORK || fork.reported {
		return fmt.Errorf("%s: step %d made process %d: must be a fork that was not reported: %w",
			r.name, fork.index, pid, errdefs.ErrInternal)
	}
	child, err := r.claim(pid)
	if errors.Is(err, unix.ECHILD) && r.diedAtBirth(fork) { // the reaper collected it
		return ErrKilledInCgroup
	}
	if errors.Is(err, unix.ECHILD) && r.readFailure() { // so it did, but the child has said why it ended
		return r.failure
	}
	if err != nil {
		return fmt.Errorf("%s: step %d made process %d: %w", r.name, fork.index, pid, err)
	}
	fork.reported = true
	r.ending = child
	if r.fork == nil || fork.index > r.fork.index {
		r.ending, r.current, r.fork = r.current, child, fork
	}
	if err := AwaitDeath(ctx, r.ending.Pid); err != nil {
		return fmt.Errorf("wait for process %d: %w", r.ending.Pid, err)
	}
	ended := r.ending
	r.ending = nil
	return r.collect(ended)
}

// claim registers a child, so that only we wait for it.
func (r *Run) claim(pid int) (*os.Process, error) {
	if !r.children.Register(pid) {
		return nil, fmt.Errorf("must be a child without an owner: %w", errdefs.ErrInternal)
	}
	if err := isChild(pid); err != nil {
		r.children.Unregister(pid)
		return nil, fmt.Errorf("must be a child of ours: %w: %w", err, errdefs.ErrAborted) // or the reaper collected it
	}
	return os.FindProcess(pid)
}

// message is the program's struct message.
type message struct{ Kind, Value, Step, Detail uint32 }

// receive returns io.EOF at the end of the program's last process.
func (r *Run) receive() (m message, err error) {
	err = binary.Read(r.socket, binary.NativeEndian, &m)
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return m, err
}
