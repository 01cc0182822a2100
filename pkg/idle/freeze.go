// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	"sandbox.internal/shim/pkg/handover"
)

// State is the part of the state for a successor that a Tracker has.
type State struct{ Conns []connState }

// connState is a connection.
type connState struct {
	FD       handover.FD
	Requests [][]byte `json:",omitempty"` // that the successor is to answer
	Part     []byte   `json:",omitempty"` // the beginning of another one
	Upgrades []uint32 `json:",omitempty"` // streams that wait for the result of the upgrade
}

// longAgo is a deadline that ends what waits.
var longAgo = time.Unix(1, 0)

// AwaitIdle waits, while calls are served, until there is a moment in which Freeze has hardly anything to wait for.
// When ctx ends first, the error, errdefs.ErrUnavailable, says what is busy.
func (t *Tracker) AwaitIdle(ctx context.Context, asking string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var busy []string
	t.awaitLocked(ctx, func() bool {
		busy = t.underWayLocked(asking) // +checklocksignore: called with t.mu
		return len(busy) == 0
	})
	return underWay(busy)
}

func underWay(busy []string) error {
	if len(busy) == 0 {
		return nil
	}
	slices.Sort(busy)
	return fmt.Errorf("under way: %s: %w", strings.Join(slices.Compact(busy), ", "), errdefs.ErrUnavailable)
}

// Freeze waits until all calls are answered, but for those that wait for an exit, and for asking, the name of the
// method that asks for the upgrade. From the beginning on no request is read and no connection is accepted, and then no
// answer is written and nothing is called, until Thaw. When ctx ends first, or the shim is ending, Freeze changes
// nothing; the error, errdefs.ErrUnavailable, says what is busy.
func (t *Tracker) Freeze(ctx context.Context, l Listener, asking string) (err error) {
	t.mu.Lock()
	t.frozen = true
	all := t.connsLocked()
	t.mu.Unlock()
	t.interrupt(l, all, longAgo)
	defer func() {
		if err != nil {
			t.thaw(l, all)
		}
	}()
	var busy []string
	t.mu.Lock()
	t.awaitLocked(ctx, func() bool {
		busy = t.busyLocked(asking) // +checklocksignore: called with t.mu
		return len(busy) == 0
	})
	all = t.connsLocked()
	ending := t.late != nil
	t.mu.Unlock()
	select {
	case <-t.config.Done:
		ending = true
	default:
	}
	if ending {
		return fmt.Errorf("the shim is ending: %w", errdefs.ErrUnavailable)
	}
	if len(busy) > 0 {
		return underWay(busy)
	}
	for i, c := range all {
		select {
		case c.writes <- struct{}{}:
		case <-ctx.Done():
			for _, c := range all[:i] {
				<-c.writes
			}
			return fmt.Errorf("under way: an answer that a client does not read: %w", errdefs.ErrUnavailable)
		}
	}
	return nil
}

// +checklocks:t.mu
func (t *Tracker) connsLocked() (all []*trackedConn) {
	for c := range t.conns {
		all = append(all, c)
	}
	return all
}

// interrupt has what waits to read or to accept return, if at is past.
func (t *Tracker) interrupt(l Listener, all []*trackedConn, at time.Time) {
	_ = l.SetDeadline(at) // fails only if it is closed, as below
	for _, c := range all {
		_ = c.SetReadDeadline(at)
	}
}

// busyLocked returns what has to end before the tracker is frozen.
//
// +checklocks:t.mu
func (t *Tracker) busyLocked(asking string) []string {
	busy := t.underWayLocked(asking)
	if t.accepting {
		busy = append(busy, "a new connection")
	}
	for c := range t.conns {
		if c.reading || c.in.left > 0 {
			busy = append(busy, "a request that is being read")
		}
	}
	return busy
}

// underWayLocked returns what takes time that is not the tracker's.
//
// +checklocks:t.mu
func (t *Tracker) underWayLocked(asking string) (busy []string) {
	if t.acting > 0 {
		busy = append(busy, "the clean-up after clients that are gone")
	}
	waiting := 0
	for method, n := range t.methods {
		switch {
		case waits(method):
			waiting -= n
		case n > 0 && method != asking: // also of a client that is gone
			busy = append(busy, method)
		}
	}
	for c := range t.conns {
		for _, m := range c.pending {
			method := m.method()
			switch {
			case waits(method):
				waiting++
			case method != asking:
				busy = append(busy, method)
			}
		}
	}
	if waiting > 0 { // one is over, and its answer not written
		busy = append(busy, "Wait")
	}
	return busy
}

// awaitThaw returns when the tracker is not frozen, with doing set, or a connection of the former program, if it is the
// server that asks.
func (t *Tracker) awaitThaw(doing *bool) *trackedConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.frozen {
		t.changed.Wait()
	}
	if doing == &t.accepting && len(t.former) > 0 {
		c := t.former[0]
		t.former = t.former[1:]
		return c
	}
	*doing = true
	return nil
}

// Thaw undoes a Freeze.
func (t *Tracker) Thaw(l Listener) {
	t.mu.Lock()
	all := t.connsLocked()
	t.mu.Unlock()
	for _, c := range all {
		<-c.writes
	}
	t.thaw(l, all)
}

func (t *Tracker) thaw(l Listener, all []*trackedConn) {
	t.interrupt(l, all, time.Time{})
	t.mu.Lock()
	t.frozen = false
	t.changed.Broadcast()
	t.mu.Unlock()
	t.Start()
}

// Save returns the state of a frozen Tracker.
func (t *Tracker) Save(s *handover.Saver) State {
	t.mu.Lock()
	defer t.mu.Unlock()
	var state State
	for c := range t.conns {
		conn := c.Conn.(syscall.Conn) //nolint:forcetypeassert // of a Listener
		saved := connState{FD: s.Keep(conn), Part: slices.Concat(c.in.part, c.replay)}
		if saved.FD == 0 { // its client is gone
			continue
		}
		for _, m := range c.pending {
			if waits(m.method()) {
				saved.Requests = append(saved.Requests, m)
			} else {
				saved.Upgrades = append(saved.Upgrades, m.stream())
			}
		}
		state.Conns = append(state.Conns, saved)
	}
	return state
}

// Restore adds the connections of a state to a new Tracker. The listener of [Tracker.Listen] returns them first. answer
// answers the calls that asked for the upgrade, and is called once, when the server is about to run.
func (t *Tracker) Restore(l *handover.Loader, s State) (answer func(*ttrpc.Response), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	type asked struct {
		conn   *trackedConn
		stream uint32
	}
	var all []asked
	for _, saved := range s.Conns {
		conn, err := restoreConn(l, saved.FD)
		if err != nil {
			return nil, err
		}
		c := t.trackLocked(conn)
		c.replay = slices.Concat(slices.Concat(saved.Requests...), saved.Part)
		t.former = append(t.former, c)
		for _, stream := range saved.Upgrades {
			all = append(all, asked{c, stream})
		}
	}
	return func(r *ttrpc.Response) {
		for _, a := range all {
			if a.conn.answer(a.stream, r) != nil {
				_ = a.conn.Close() // its client would wait for ever
			}
		}
	}, nil
}

func restoreConn(l *handover.Loader, fd handover.FD) (net.Conn, error) {
	file, err := l.File(fd, "connection")
	if err != nil {
		return nil, err
	}
	l.CloseLater(file)
	return net.FileConn(file) // a duplicate; of no file it is an error
}
