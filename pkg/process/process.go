// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// Process is the init of a container or one of its execs.
type Process struct {
	container *Container
	execID    string         // empty: init
	spec      *specs.Process // of an exec
	io        stdio.Config
	limits    *limit.Limits // nil: none, and no verdict

	opLock       chan struct{}      // one slot; see the package documentation
	exited       chan struct{}      // closed once, after the exit is published
	drained      chan struct{}      // closed once, after the output is drained and the streams are closed
	draining     context.Context    //nolint:containedctx // of the wait for readers of the output
	stopDraining context.CancelFunc // ends draining; both are set before p is Stopped
	killed       context.Context    //nolint:containedctx // that of a process, not of a request: it ends with a SIGKILL
	// +checklocks:mu
	kill func() // ends killed, before the signal is sent

	ioLock sync.Mutex // orders operations on the streams
	// +checklocks:ioLock
	asked asked // operations on the streams that came before these

	unuse func() // ends the use of the container by an exec that runs; set before await

	mu      sync.Mutex
	state   State          // +checklocksignore: nextLocked
	handle  Handle         // nil before the process exists: for an exec, or an init to be restored, before Start
	group   ExecCgroup     // of an exec with limits; set with handle
	streams *stdio.Streams // nil before the process runs
	// +checklocks:mu
	exit Exit
	// +checklocks:mu
	run run
}

func newProcess(c *Container, execID string, spec *specs.Process, io stdio.Config, l *limit.Limits) *Process {
	killed, kill := context.WithCancelCause(context.Background())
	if l != nil {
		io.MaxOutput = l.Output
	}
	if c.config.Sleeper != nil {
		io.Input = func() { c.use(UseInput)() }
	}
	return &Process{
		container: c, execID: execID, spec: spec, io: io, limits: l,
		opLock: make(chan struct{}, 1), exited: make(chan struct{}), drained: make(chan struct{}),
		killed: killed, kill: func() { kill(errEndedByKill) },
	}
}

// Status is what Task.State answers about a process.
type Status struct {
	ID     string // the exec id, or the container's for init
	Pid    int    // 0 before there is a process
	State  State
	Exit   Exit
	Bundle string
	IO     stdio.Config
}

// Status returns the status of the process. It never blocks.
func (p *Process) Status() Status {
	p.mu.Lock()
	s := Status{ID: p.id(), State: p.state.shown(), Exit: p.exit, Bundle: p.container.config.Bundle, IO: p.io}
	if p.handle != nil {
		s.Pid = p.handle.Pid()
	}
	p.mu.Unlock()
	if p.execID != "" && s.State == Running {
		if init := p.container.init.Status().State; init == Pausing || init == Paused {
			s.State = init
		}
	}
	return s
}

// Pid returns the process id as the shim sees it, or 0 before there is a process.
func (p *Process) Pid() int { return p.Status().Pid }

// Exited returns a channel that is closed once the exit is published.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Kill sends sig. SIGKILL to init also thaws the container, since a frozen process does not die on cgroup v1; no exec
// starts after it. The thaw only writes to the cgroup, since the runtime may be busy with a Pause. SIGKILL also aborts
// the Start of an exec, or a restore, that is under way. If the program already runs, it is killed as usual.
func (p *Process) Kill(sig syscall.Signal) error {
	use := UseExec
	if p.execID == "" {
		use = UseSignal
	}
	defer p.container.use(use)()
	op := OpSignal
	if sig == syscall.SIGKILL {
		op = OpKill
	}
	p.mu.Lock()
	_, err := p.nextLocked(op)
	handle := p.handle
	if err == nil && op == OpKill {
		p.kill()
	}
	p.mu.Unlock()
	switch {
	case err != nil:
		return p.wrap(err)
	case handle == nil:
		return nil
	}
	err = handle.Signal(sig)
	if err == nil && op == OpKill && p.execID == "" {
		p.container.exits.close(errInitKilled)
		err = p.container.Cgroup().Thaw()
	}
	if err != nil {
		return p.wrap(fmt.Errorf("kill with signal %d: %w", sig, err))
	}
	return nil
}

// wasKilled reports whether SIGKILL was sent, or is about to be. A later freeze must be undone.
func (p *Process) wasKilled() bool { return p.killed.Err() != nil }

// Resize sets the size of the terminal, in characters.
func (p *Process) Resize(width, height uint16) error {
	if !p.io.Terminal {
		none := fmt.Errorf("resize: the process has no terminal: %w", errdefs.ErrFailedPrecondition)
		return cmp.Or(p.check(OpResize), p.wrap(none))
	}
	return p.askStreams(OpResize, asked{Size: [2]uint16{width, height}, Resize: true})
}

// CloseStdin ends the process's standard input after the data that was sent so far.
func (p *Process) CloseStdin() error { return p.askStreams(OpCloseIO, asked{CloseStdin: true}) }

// asked is a size of the terminal, and the end of stdin.
type asked struct {
	Size               [2]uint16
	Resize, CloseStdin bool
}

// apply has the streams do what was asked.
func (a asked) apply(s *stdio.Streams) (err error) {
	if a.Resize {
		err = s.Resize(a.Size[0], a.Size[1])
	}
	if a.CloseStdin {
		err = errors.Join(err, s.CloseStdin())
	}
	return err
}

// askStreams has the streams do what is asked for op, if the state table allows it: now, or in runs if there are none
// yet.
func (p *Process) askStreams(op Op, a asked) error {
	defer p.container.use(UseInput)()
	p.ioLock.Lock()
	defer p.ioLock.Unlock()
	if err := p.check(op); err != nil {
		return err
	}
	streams := p.openStreams()
	if streams != nil {
		return a.apply(streams)
	}
	if a.Resize {
		p.asked.Size, p.asked.Resize = a.Size, true
	}
	p.asked.CloseStdin = p.asked.CloseStdin || a.CloseStdin
	return nil
}

func (p *Process) openStreams() *stdio.Streams {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// OpenStdin lets clients write to stdin. It is called once, when clients can ask for the state of the process: by the
// owner of a container that New has made, otherwise by Start. Without streams, as before a restore, it does nothing.
func (p *Process) OpenStdin() {
	if streams := p.openStreams(); streams != nil {
		if err := streams.OpenStdin(); err != nil {
			p.logger().WithError(err).Error("the process gets no input")
		}
	}
}

// Wait blocks until the exit is published, or ctx ends.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.exited:
		return p.Status().Exit, nil
	case <-ctx.Done():
		return Exit{}, p.wrap(fmt.Errorf("wait: %w", ctx.Err()))
	}
}

func (p *Process) id() string { return cmp.Or(p.execID, p.container.ID()) }

func (p *Process) wrap(err error) error {
	if p.execID != "" {
		err = fmt.Errorf("exec %q: %w", p.execID, err)
	}
	return fmt.Errorf("container %q: %w", p.container.ID(), err)
}

func (p *Process) logger() *log.Entry {
	entry := logger(p.container.ID())
	if p.execID != "" {
		entry = entry.WithField("exec", p.execID)
	}
	return entry
}

// lockOp waits until no other operation is under way, and locks opLock for op. It fails, without the lock, if ctx ends
// first or if the state table refuses op.
func (p *Process) lockOp(ctx context.Context, op Op) error {
	select {
	case p.opLock <- struct{}{}:
	case <-ctx.Done():
		return p.wrap(fmt.Errorf("%v: another operation is still under way: %w", op, ctx.Err()))
	}
	err := p.check(op)
	if err != nil {
		p.unlockOp()
	}
	return err
}

func (p *Process) unlockOp() { <-p.opLock }

// nextLocked returns the state that op leads to from the current one.
func (p *Process) nextLocked(op Op) (State, error) {
	table := initTable
	if p.execID != "" || p.handle == nil {
		table = execTable
	}
	return next(table, p.state, op)
}

// may returns an error if the state table refuses op. While opLock is held the answer stays valid, except for an exec
// that is Created (abandon).
func (p *Process) may(op Op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.nextLocked(op)
	return err
}

// check is may with an error that names the process.
func (p *Process) check(op Op) error {
	if err := p.may(op); err != nil {
		return p.wrap(err)
	}
	return nil
}

// commit changes the state after the side effect of op. The caller holds opLock and has checked op.
func (p *Process) commit(op Op) {
	if err := p.tryCommit(op); err != nil {
		panic("process: commit without check: " + err.Error())
	}
}

// tryCommit is commit for an op that abandon may have made impossible.
func (p *Process) tryCommit(op Op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.commitLocked(op); err != nil {
		return p.wrap(err)
	}
	return nil
}

// unknownStatus is the exit status of a process that never ran, as in containerd's client (client.UnknownExitStatus).
const unknownStatus = 255

// commitLocked changes the state. If that ends a process without a program, it answers those who wait for its exit.
//
// +checklocks:p.mu
func (p *Process) commitLocked(op Op) error {
	to, err := p.nextLocked(op)
	if err != nil {
		return err
	}
	if p.handle == nil && p.state < Running && to >= Stopped {
		p.exit.Status = unknownStatus
		close(p.exited)
	}
	p.state = to
	return nil
}
