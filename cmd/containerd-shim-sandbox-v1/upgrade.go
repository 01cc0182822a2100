// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/bootstrap"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/group"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/options"
	"sandbox.internal/shim/pkg/service"
)

// Bounds of an upgrade.
const (
	idleTimeout   = 5 * time.Second        // for what is under way
	freezeTimeout = 100 * time.Millisecond // for which nothing is answered, in vain
	checkTimeout  = 10 * time.Second       // for the other program's answer
)

// state is what a shim hands over. Each package knows its part.
type state struct {
	Daemon  bootstrap.SavedDaemon
	Started time.Time
	Clients idle.State
	Events  event.State
	Units   []group.State
}

// upgrade replaces this program by the one that is installed at its path. It returns only if that did not happen. The
// other program has checked the state before, as a child, while this one goes on.
func (s *shim) upgrade(_ context.Context, dryRun bool) (bool, error) {
	if !s.upgrading.TryLock() {
		return false, fmt.Errorf("another upgrade is under way: %w", errdefs.ErrUnavailable)
	}
	defer s.upgrading.Unlock() // +checklocksignore: TryLock was successful
	path, err := handover.OwnPath()
	if err != nil {
		return false, err
	}
	program, err := handover.Open(path, s.d.Arguments())
	if err != nil {
		return false, err
	}
	defer program.Close() //nolint:errcheck // only read
	if own, err := program.IsOwn(); own || err != nil {
		return false, err
	}
	var wait func(context.Context) error
	err = s.frozen(func(st *handover.State) (err error) {
		return s.d.Thread.Do(func() error { // with which the child dies
			wait, err = program.Start(st, s.reaper)
			return err
		})
	})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	if err := wait(ctx); err != nil || dryRun {
		return true, err
	}
	err = s.frozen(func(st *handover.State) error {
		if s.ending.Err() != nil {
			return fmt.Errorf("the shim is ending: %w", errdefs.ErrUnavailable)
		}
		err := s.group.Leave()
		if err == nil {
			err = s.d.Thread.Do(func() error { return program.Exec(st) })
		}
		err = errors.Join(err, s.group.Stay())
		return err
	})
	return false, err
}

// frozen calls do with the state of the shim, which does nothing meanwhile. What is under way has a while to end, in
// which other calls are answered: containerd waits for two seconds for a State.
func (s *shim) frozen(do func(*handover.State) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), idleTimeout)
	defer cancel()
	for {
		if err := s.clients.AwaitIdle(ctx, service.UpgradeMethod); err != nil {
			return err
		}
		if err := handover.Stuck(); err != nil {
			return err
		}
		thaw, err := s.freeze()
		if err == nil {
			defer thaw()
			return s.withState(do)
		}
		select {
		case <-time.After(freezeTimeout):
		case <-ctx.Done():
			return err
		}
	}
}

// freeze has the shim do nothing until thaw. The error says what is busy.
func (s *shim) freeze() (thaw func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), freezeTimeout)
	defer cancel()
	var thaws []func()
	thaw = func() {
		for _, one := range slices.Backward(thaws) {
			one()
		}
	}
	for _, step := range []func() (thaw func(), err error){
		func() (func(), error) {
			return func() { s.clients.Thaw(s.listener) }, s.clients.Freeze(ctx, s.listener, service.UpgradeMethod)
		},
		func() (func(), error) { return s.reaper.Freeze(ctx) },
		func() (func(), error) { return s.group.Freeze(ctx) },
		func() (func(), error) { return s.events.Thaw, s.events.Freeze(ctx) },
	} {
		one, err := step()
		if err != nil {
			thaw()
			return nil, err
		}
		thaws = append(thaws, one)
	}
	return thaw, nil
}

// withState calls do with the state of a frozen shim.
func (s *shim) withState(do func(*handover.State) error) error {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would take as long as all of this
	own, err := handover.Own()
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // only read
	h := &handover.Saver{}
	body, err := s.save(h)
	defer s.group.Saved()
	if err != nil {
		return err
	}
	st, err := h.State(version, own, body)
	if err != nil {
		return err
	}
	defer st.Close() //nolint:errcheck // all is written
	return do(st)
}

func (s *shim) save(h *handover.Saver) (_ *state, err error) {
	all := &state{Daemon: s.d.Save(h, s.listener), Started: s.started, Clients: s.clients.Save(h)}
	if all.Units, err = s.group.Save(h); err != nil {
		return nil, err
	}
	all.Events, err = s.events.Save()
	return all, err
}

// load reads the state of a former program.
func load(file *os.File) (*handover.Loader, bootstrap.Successor, error) {
	all := &state{}
	l, err := handover.Load(file, all)
	return l, bootstrap.Successor{
		Saved: &all.Daemon,
		Restore: func(d bootstrap.Daemon, socket idle.Listener) (func(context.Context) error, error) {
			d.Defaults = newDefaults(options.DefaultFile)
			s := newShim(d, socket, true)
			s.clients.Stop() // until it serves
			return s.restore(l, all)
		},
	}, err
}

// restore restores what the former program had. The shim goes on in serve, which is not called in a check.
func (s *shim) restore(l *handover.Loader, all *state) (serve func(context.Context) error, err error) {
	s.started = all.Started
	beginEvents, err := s.events.Restore(all.Events)
	enter, begin, failed := s.group.Restore(l, all.Units, s.d.Thread, s.reaper)
	answer, failedClients := s.clients.Restore(l, all.Clients)
	if err = errors.Join(err, failed, failedClients, l.Unused()); err == nil {
		err = enter() // the last that can fail
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		beginEvents() // first: what begins after it puts events
		begin()
		var why error
		if text := handover.Failure(); text != "" {
			why = fmt.Errorf("the other program failed, and this one goes on: %s: %w", text, errdefs.ErrInternal)
			log.L.WithError(why).Error("upgrade")
		}
		if err := l.Commit(); err != nil {
			log.L.WithError(err).Error("what the former program has left stays open")
		}
		answer(service.UpgradeAnswer(version, why))
		s.clients.Start()
		return s.run(ctx)
	}, nil
}
