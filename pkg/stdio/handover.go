// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/handover"
)

// pause stops the goroutines of Streams where they hold nothing but what the state for a successor has.
type pause struct {
	mu sync.Mutex
	// +checklocks:mu
	changed sync.Cond // something below has changed
	// +checklocks:mu
	frozen bool
	// +checklocks:mu
	running int // goroutines that are between enter and leave
}

func newPause() *pause {
	p := &pause{}
	p.changed.L = &p.mu
	return p
}

// enter waits while p is frozen. leave is called where the caller may be stopped for good.
func (p *pause) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.frozen {
		p.changed.Wait()
	}
	p.running++
}

func (p *pause) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.changed.Broadcast()
}

func (p *pause) set(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = frozen
	p.changed.Broadcast()
}

// await waits until nobody runs, or ctx ends.
func (p *pause) await(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.running > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("under way: output to a file, or the end of standard streams: %w", errdefs.ErrUnavailable)
		}
		p.changed.Wait()
	}
	return nil
}

// endOf returns the file that a sink writes to, or nil.
func endOf(to sink) *pipeEnd {
	switch to := to.(type) {
	case *pipeEnd:
		return to
	case *fifoOutput:
		return to.pipeEnd
	case *loggerInput:
		return to.pipeEnd
	case *terminalInput:
		return to.master
	}
	return nil
}

// Freeze stops all copying until Thaw. It fails, with errdefs.ErrUnavailable, and changes nothing, if a file does not
// take what is being written before ctx ends.
func (s *Streams) Freeze(ctx context.Context) error {
	s.pause.set(true)
	s.interrupt(longAgo)
	err := s.pause.await(ctx)
	if err != nil {
		s.Thaw()
	}
	return err
}

// Thaw undoes Freeze.
func (s *Streams) Thaw() {
	s.interrupt(time.Time{})
	s.pause.set(false)
}

// interrupt has what waits to read or to write return, if at is past.
func (s *Streams) interrupt(at time.Time) {
	for _, c := range s.allCopiers() {
		if c.from != nil {
			_ = c.from.file.SetReadDeadline(at) // fails if it is closed, as below
		}
		if to := endOf(c.to); to != nil {
			_ = to.file.SetWriteDeadline(at) // or a file that never waits
		}
	}
}

func (s *Streams) allCopiers() []*copier {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.copiers
	if s.stdin != nil {
		all = append(slices.Clip(all), s.stdin)
	}
	return all
}

// State is what Streams hand over to those of a successor.
type State struct {
	Input   *inputState `json:",omitempty"`
	InPipe  handover.FD `json:",omitempty"` // our end of the process's stdin
	Master  handover.FD `json:",omitempty"` // of the terminal
	Stdin   *copierState
	Outputs [2]*copierState
	Binary  *loggerState `json:",omitempty"`
}

type inputState struct {
	Path     string
	FD, Hold handover.FD
	Ended    bool
}

type loggerState struct {
	Path   string
	Pid    int            `json:",omitempty"` // 0: it is reaped
	Killed syscall.Signal `json:",omitempty"`
	Late   bool           `json:",omitempty"`
}

type copierState struct {
	From   handover.FD `json:",omitempty"` // of a pipe
	To     handover.FD `json:",omitempty"`
	Hold   handover.FD `json:",omitempty"`
	Given  bool        `json:",omitempty"` // up, and nothing is held
	Fifo   bool        `json:",omitempty"`
	Name   string      // of what it leads to
	Rest   []byte      `json:",omitempty"` // taken and not passed on
	Last   byte        `json:",omitempty"` // that was written to a terminal
	Phase  int32       `json:",omitempty"`
	Exited bool        `json:",omitempty"`

	Taken, Written, Lost, Mark int64
	Cut, Unread                string `json:",omitempty"`
}

// Save returns the state of frozen Streams that were started.
func (s *Streams) Save(h *handover.Saver) *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := &State{}
	if s.input != nil {
		state.Input = &inputState{Path: s.input.path, Hold: h.KeepStream(s.input.hold), Ended: s.input.ended}
		if s.input.pipeEnd != nil {
			state.Input.FD = h.KeepStream(s.input.file)
		}
	}
	for fd, p := range map[*handover.FD]*pipeEnd{&state.InPipe: s.inPipe, &state.Master: s.master} {
		if p != nil {
			*fd = h.KeepStream(p.file)
		}
	}
	if s.binary != nil {
		state.Binary = &loggerState{Path: s.binary.path, Late: s.binary.late.Load()}
		if s.binary.reaped.Load() {
			state.Binary.Killed = s.binary.killed
		} else {
			state.Binary.Pid = s.binary.process.Pid
		}
	}
	if s.stdin != nil {
		state.Stdin = s.stdin.save(h)
	}
	for i, c := range s.outputs {
		if c != nil {
			state.Outputs[i] = c.save(h)
		}
	}
	return state
}

func (c *copier) save(h *handover.Saver) *copierState {
	state := &copierState{
		Phase: c.phase.Load(), Exited: c.exited.Load(),
		Taken: c.taken.Load(), Written: c.written.Load(), Lost: c.lost.Load(), Mark: c.mark.Load(),
	}
	if c.cut != nil {
		state.Cut = c.cut.Error()
	}
	if c.unread != nil {
		state.Unread = c.unread.Error()
	}
	if to := endOf(c.to); to != nil {
		state.Name, state.Rest = to.name, to.rest
	}
	switch to := c.to.(type) {
	case *fifoOutput:
		state.Fifo, state.To = true, h.KeepStream(to.file)
		to.mu.Lock()
		state.Hold, state.Given = h.KeepStream(to.hold), to.given
		to.mu.Unlock()
	case *terminalInput:
		state.Last = to.last
	default:
		if to := endOf(c.to); to != nil && c.output {
			state.To = h.KeepStream(to.file)
		}
	}
	if c.output && !c.terminal {
		state.From = h.KeepStream(c.from.file)
	}
	return state
}

// restorer takes the descriptors of a state, and keeps the errors.
type restorer struct {
	l    *handover.Loader
	errs []error
}

func (r *restorer) file(fd handover.FD, name string) *os.File {
	f, err := r.l.File(fd, name)
	r.errs = append(r.errs, err)
	return f
}

// end returns a file without a descriptor if it was closed.
func (r *restorer) end(fd handover.FD, name string) *pipeEnd {
	p := &pipeEnd{file: r.file(fd, name), conn: closedConn{}, name: name}
	if p.file != nil {
		p.conn, _ = p.file.SyscallConn() // fails only for a file that is nil
	}
	return p
}

// Restore returns the Streams of a state. Nothing is copied before begin.
//
// +checklocksignore: nobody else has the Streams yet
func Restore(l *handover.Loader, state *State, c Config) (_ *Streams, begin func(), err error) {
	s, r := newStreams(log.L, c), &restorer{l: l}
	s.started = true
	if in := state.Input; in != nil {
		s.input = &input{path: in.Path, pipeEnd: r.end(in.FD, in.Path), hold: r.file(in.Hold, in.Path), ended: in.Ended}
	}
	s.inPipe = r.end(state.InPipe, "shim's end")
	if c.Terminal {
		s.master = r.end(state.Master, "terminal")
	}
	if b := state.Binary; b != nil {
		s.binary = &logger{path: b.Path, bounds: c.Host.bounds, exited: make(chan struct{})}
		s.binary.late.Store(b.Late)
		s.binary.killed = b.Killed
		s.binary.reaped.Store(b.Pid == 0)
		if b.Pid != 0 {
			c.Host.Children.Register(b.Pid)
			s.binary.process, err = os.FindProcess(b.Pid)
			r.errs = append(r.errs, err)
		}
	}
	for i, saved := range state.Outputs {
		if saved != nil {
			s.outputs[i] = s.restoreOutput(r, i, saved, c)
			s.copiers = append(s.copiers, s.outputs[i])
		}
	}
	if saved := state.Stdin; saved != nil && s.input != nil {
		s.stdin = &copier{name: "stdin", from: s.input.pipeEnd, source: s.input, to: s.inPipe, before: s.beforeIn}
		if c.Terminal {
			s.stdin.to = &terminalInput{master: s.master, last: saved.Last}
		}
		s.stdin.restore(s, saved)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, nil, fmt.Errorf("standard streams: %w", err)
	}
	return s, func() { s.resume(c.Host) }, nil
}

// restoreOutput is part of Restore.
//
// +checklocksignore: as there
func (s *Streams) restoreOutput(r *restorer, i int, saved *copierState, c Config) *copier {
	o := &copier{name: outputNames[i], output: true, terminal: c.Terminal, maxOutput: c.MaxOutput}
	if o.from = r.end(saved.From, "shim's end"); c.Terminal {
		o.from = s.master
	}
	o.source = o.from
	to := r.end(saved.To, saved.Name)
	switch {
	case s.binary != nil:
		s.binary.inputs[i] = &loggerInput{to, s.binary.exited}
		o.to = s.binary.inputs[i]
	case saved.Fifo:
		o.to = &fifoOutput{pipeEnd: to, hold: r.file(saved.Hold, saved.Name), given: saved.Given}
	default:
		o.to = to
	}
	o.restore(s, saved)
	return o
}

// closedConn is that of a file that was closed.
type closedConn struct{}

func (closedConn) Control(func(uintptr)) error    { return os.ErrClosed }
func (closedConn) Read(func(uintptr) bool) error  { return os.ErrClosed }
func (closedConn) Write(func(uintptr) bool) error { return os.ErrClosed }

func (c *copier) restore(s *Streams, saved *copierState) {
	s.prepare(c)
	c.rest = saved.Rest
	c.phase.Store(saved.Phase)
	c.exited.Store(saved.Exited)
	c.taken.Store(saved.Taken)
	c.written.Store(saved.Written)
	c.lost.Store(saved.Lost)
	c.mark.Store(saved.Mark)
	if saved.Mark != unknown {
		c.marked.Do(func() {})
	}
	if saved.Cut != "" {
		c.cut = errors.New(saved.Cut)
	}
	if saved.Unread != "" {
		c.unread = errors.New(saved.Unread)
	}
	if to, ok := c.to.(*terminalInput); ok && saved.Phase == ending {
		to.typing = saved.Rest
	}
}

// resume starts the copying of restored Streams.
func (s *Streams) resume(host *Host) {
	if s.binary != nil {
		if s.binary.reaped.Load() {
			close(s.binary.exited)
		} else {
			go s.binary.await(host.Children) // as in logger.start
		}
	}
	for _, c := range s.allCopiers() {
		if c.phase.Load() == ended {
			close(c.ended)
			continue
		}
		s.copying.Go(c.run)
	}
}
