// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/stdio"
)

// SavedState is a container in the state for a successor.
type SavedState struct {
	ID, Bundle string
	Checkpoint string `json:",omitempty"`
	IO         stdio.Config
	Options    Options
	Runtime    json.RawMessage
	OOM        cgroup.OOMState
	OOMs       bool `json:",omitempty"` // publishesOOMs
	PendingOOM bool `json:",omitempty"`
	Started    uint64
	Ending     bool `json:",omitempty"` // by a Checkpoint
	Init       processState
	Execs      []processState `json:",omitempty"`
}

type processState struct {
	ExecID  string         `json:",omitempty"`
	Spec    *specs.Process `json:",omitempty"` // of an exec that was not started
	IO      stdio.Config   // of an exec
	Limits  *limit.Limits  `json:",omitempty"`
	State   State
	Exit    Exit            // once it is published
	Killed  bool            `json:",omitempty"`
	Handle  json.RawMessage `json:",omitempty"`
	Streams *stdio.State    `json:",omitempty"` // nil before they are opened, and when all is drained
	Asked   asked           `json:",omitzero"`
	Begun   time.Time       `json:",omitzero"` // of a run
	Over    limit.Reason    `json:",omitempty"`
}

// frozen is a container that is frozen, and what thaws it.
type frozen struct {
	oom   cgroup.OOMState
	thaws []func()
}

// Freeze waits for the end of the operations under way, after which the container does nothing until Thaw: no exit is
// published, and no byte of output passed on. The reaper is frozen before. If ctx ends first, Freeze changes nothing,
// and the error is errdefs.ErrUnavailable.
func (c *Container) Freeze(ctx context.Context) error {
	f := &frozen{}
	c.frozen = f
	for _, p := range append(c.allExecs(), c.init) {
		if err := p.freeze(ctx, f); err != nil {
			c.Thaw()
			return p.wrap(err)
		}
	}
	c.mu.Lock()
	watch := c.oom
	c.mu.Unlock()
	if watch != nil {
		var thaw func()
		f.oom, thaw = watch.Freeze()
		f.thaws = append(f.thaws, thaw)
	}
	return nil
}

// Thaw undoes Freeze.
func (c *Container) Thaw() {
	for _, thaw := range c.frozen.thaws {
		thaw()
	}
	c.frozen = nil
}

func (p *Process) freeze(ctx context.Context, f *frozen) error {
	select {
	case p.opLock <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("under way: an operation, or an exit: %w", errdefs.ErrUnavailable)
	}
	f.thaws = append(f.thaws, p.unlockOp)
	if streams := p.openStreams(); streams != nil && !p.isDrained() {
		if err := streams.Freeze(ctx); err != nil {
			return err
		}
		f.thaws = append(f.thaws, streams.Thaw)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run.frozen = true
	f.thaws = append(f.thaws, p.thawLimits)
	return nil
}

// thawLimits ends what a limit has asked for meanwhile.
func (p *Process) thawLimits() {
	p.mu.Lock()
	p.run.frozen = false
	missed := p.run.missed
	p.run.missed = limit.None
	p.mu.Unlock()
	if missed != limit.None {
		p.killOverLimit(missed)
	}
}

func (p *Process) isDrained() bool {
	select {
	case <-p.drained:
		return true
	default:
		return false
	}
}

// Save returns the state of a frozen container. The error is errdefs.ErrUnavailable if a successor cannot have it now.
func (c *Container) Save(h *handover.Saver) (*SavedState, error) {
	c.init.mu.Lock()
	init, started := c.init.handle, c.init.state != Created
	c.init.mu.Unlock()
	saved, err := c.runtime.Save(h, init, started)
	if err != nil {
		return nil, c.init.wrap(err)
	}
	c.mu.Lock()
	s := &SavedState{
		ID: c.ID(), Bundle: c.config.Bundle, Checkpoint: c.config.Checkpoint, IO: c.config.IO, Options: c.config.Options,
		OOM: c.frozen.oom, OOMs: c.publishesOOMs, PendingOOM: c.pendingOOM,
		Started: c.execsStarted.Load(), Ending: c.checkpointed.Load(),
	}
	c.mu.Unlock()
	if s.Runtime, err = json.Marshal(saved); err != nil {
		return nil, c.init.wrap(err)
	}
	if s.Init, err = c.init.save(h); err != nil {
		return nil, c.init.wrap(err)
	}
	for _, p := range c.allExecs() {
		one, err := p.save(h)
		if err != nil {
			return nil, p.wrap(err)
		}
		s.Execs = append(s.Execs, one)
	}
	return s, nil
}

func (p *Process) save(h *handover.Saver) (s processState, err error) {
	p.ioLock.Lock()
	defer p.ioLock.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	s = processState{
		ExecID: p.execID, Limits: p.limits, State: p.state, Exit: p.exit, Killed: p.wasKilled(), Begun: p.run.started,
		Over: p.run.ended,
	}
	if p.execID != "" {
		s.IO = p.io
	}
	if p.handle == nil {
		s.Spec, s.Asked = p.spec, p.asked
		return s, nil
	}
	if p.streams != nil && !p.isDrained() {
		s.Streams = p.streams.Save(h)
	}
	s.Handle, err = json.Marshal(p.handle.Save())
	return s, err
}

// Restore returns the container of a state, which has config beside that. begin lets it run, when all is restored and
// events may be put; before, it does nothing.
//
// +checklocksignore: nobody else has the container yet
func Restore(
	l *handover.Loader, runtime Runtime, events *event.Queue, s *SavedState, config Config,
) (_ *Container, begin func(), err error) {
	config.ID, config.Bundle, config.Checkpoint, config.Options = s.ID, s.Bundle, s.Checkpoint, s.Options
	host := config.IO.Host
	config.IO = s.IO
	config.IO.Host = host
	c := &Container{config: config, events: events, execs: map[string]*Process{}, starts: newGate(), exits: newGate()}
	c.publishesOOMs, c.pendingOOM = s.OOMs, s.PendingOOM
	c.execsStarted.Store(s.Started)
	c.checkpointed.Store(s.Ending)
	defer func() {
		if err != nil {
			err = fmt.Errorf("container %q: %w", s.ID, err)
		}
	}()
	if c.runtime, err = runtime.Restore(l, config, s.Runtime); err != nil {
		return nil, nil, err
	}
	var begins []func()
	s.Init.IO = config.IO
	c.init, begin, err = c.restore(l, s.Init)
	if err != nil {
		return nil, nil, err
	}
	begins = append(begins, begin)
	for _, one := range s.Execs {
		one.IO.Host = host
		if begin, err = c.restoreExec(l, one); err != nil {
			return nil, nil, fmt.Errorf("exec %q: %w", one.ExecID, err)
		}
		begins = append(begins, begin)
	}
	switch {
	case s.Init.State == Stopped:
		c.starts.close(errInitExited)
		c.exits.close(errInitExited)
	case s.Init.Killed:
		c.exits.close(errInitKilled)
	}
	if begin, err = c.restoreOOMWatch(s); err != nil {
		return nil, nil, fmt.Errorf("watch for OOM kills: %w", err)
	}
	begins = append(begins, begin)
	return c, func() {
		for _, h := range c.config.Hooks {
			if r, ok := h.(Resumer); ok {
				r.Resumed(c.runtime)
			}
		}
		if c.init.Status().State == Paused {
			c.unpause = c.use(UsePause)
		}
		for _, begin := range begins {
			begin()
		}
	}, nil
}

// restoreOOMWatch opens the watch of a state. begin starts it.
func (c *Container) restoreOOMWatch(s *SavedState) (begin func(), err error) {
	none := cgroup.New(nil) // of which there is nothing to watch
	if s.Init.State == Stopped {
		c.oom, err = none.OpenOOMWatch(c.oomKilled)
		return func() {}, err
	}
	if c.oom, err = c.Cgroup().OpenOOMWatch(c.oomKilled); errdefs.IsNotFound(err) {
		c.oom, err = none.OpenOOMWatch(c.oomKilled) // it is about to be known that init has exited
	}
	if err != nil {
		return nil, err
	}
	c.oom.Restore(s.OOM)
	return c.oom.Begin, nil
}

// restoreExec adds an exec of a state. begin is as in restore.
//
// +checklocksignore: nobody else has the container yet
func (c *Container) restoreExec(l *handover.Loader, s processState) (begin func(), err error) {
	if _, ok := c.execs[s.ExecID]; ok || s.ExecID == "" {
		return nil, fmt.Errorf("its id: %w", errdefs.ErrInvalidArgument)
	}
	c.execs[s.ExecID], begin, err = c.restore(l, s)
	return begin, err
}

// restore returns a process of a state. begin starts its waiter.
//
// +checklocksignore: nobody else has the process yet
func (c *Container) restore(l *handover.Loader, s processState) (p *Process, begin func(), err error) {
	if s.State < Created || s.State > Stopped || s.State == starting || s.State == Pausing {
		return nil, nil, fmt.Errorf("state %d: %w", s.State, errdefs.ErrInvalidArgument)
	}
	p = newProcess(c, s.ExecID, s.Spec, s.IO, s.Limits)
	p.state, p.exit, p.asked = s.State, s.Exit, s.Asked
	if s.Killed {
		p.kill()
	}
	if s.Handle == nil {
		if s.State == Stopped { // it failed to start
			close(p.exited)
		} else if s.State != Created || s.ExecID == "" {
			return nil, nil, fmt.Errorf("it is %v, and has no process: %w", s.State, errdefs.ErrInvalidArgument)
		}
		return p, func() {}, nil
	}
	if s.ExecID == "" {
		p.handle = c.runtime.Init()
	} else if p.handle, p.group, err = c.runtime.RestoreExec(s.Handle, s.Limits); err != nil {
		return nil, nil, err
	}
	copyStreams, err := p.restoreStreams(l, s)
	if err != nil {
		return nil, nil, err
	}
	if s.State == Stopped {
		close(p.exited)
		p.beginDraining()
		if p.streams == nil {
			close(p.drained)
			return p, func() {}, nil
		}
	} else if s.ExecID != "" {
		if err := c.exits.enter(context.Background()); err != nil {
			return nil, nil, err
		}
	}
	return p, func() {
		copyStreams()
		p.resumeLimits(s.Begun, s.Over)
		if s.ExecID != "" {
			p.unuse = c.use(UseExec)
		}
		p.handle.OnEnd(p.await)
	}, nil
}

// restoreStreams sets the streams that a state has. begin starts their copying.
//
// +checklocksignore: nobody else has the process yet
func (p *Process) restoreStreams(l *handover.Loader, s processState) (begin func(), err error) {
	if s.Streams == nil {
		return func() {}, nil
	}
	io := p.io
	if s.State == Stopped && io.KeepUnread > 0 { // the time runs since the exit
		io.KeepUnread = max(io.KeepUnread-time.Since(s.Exit.At), 1)
	}
	p.streams, begin, err = stdio.Restore(l, s.Streams, io)
	return begin, err
}

// resumeLimits starts the timers of a run that a former program began, or ends it, if that was about to.
func (p *Process) resumeLimits(begun time.Time, over limit.Reason) {
	p.mu.Lock()
	runs := p.state == Running // Status would say that an exec of a paused container is paused
	p.mu.Unlock()
	if p.limits == nil || !runs {
		return
	}
	p.startLimits(begun, true)
	if over != limit.None {
		p.mu.Lock()
		p.run.ended = over
		p.mu.Unlock()
		_ = p.Kill(syscall.SIGKILL) // it may be dead already
	}
}
