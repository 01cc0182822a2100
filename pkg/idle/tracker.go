// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package idle acts when the clients of a shim do nothing: the shim ends when nobody is connected, and gives memory
// back when nobody calls. Two timers of a [Tracker] run once, after the last connection and after the last call;
// [Tracker.Stop] ends them. Each type has one lock, which guards its fields.
package idle

import (
	"context"
	"fmt"
	"net"
	"path"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
)

const (
	// noClientTimeout is how long nobody must be connected before [Config.NoClient] is called: containerd may have died
	// between start and Create. One that restarts connects again within seconds, if there is anything to connect for.
	noClientTimeout = 15 * time.Second
	// firstQuiet and laterQuiet are how long nobody must call before [Config.Quiet] is called: first soon after the
	// container started, later after more than the ten seconds between the probes of a kubelet.
	firstQuiet = 2 * time.Second
	laterQuiet = 15 * time.Second
	// hangUpTimeout is how long clients have to hang up once they have their answers, as containerd does. It also bounds
	// the wait for answers that come before that of Shutdown.
	hangUpTimeout = 100 * time.Millisecond
)

// isPoll reports whether clients call a method at intervals, as containerd's CRI plugin does each second (containerd
// internal/cri/server/stats_collector.go). A poll is no activity: it needs little of the program.
func isPoll(fullMethod string) bool {
	switch path.Base(fullMethod) {
	case "Stats", "State", "Pids", "SandboxMetrics", "SandboxStatus", "PingSandbox":
		return true
	}
	return false
}

// Config is what a [Tracker] calls: Ends on the goroutine of the call, the others on one of their own.
type Config struct {
	Done     <-chan struct{} // closed once the shim is to end
	Ends     func()          // the client is about to have the answer to Shutdown, and the shim ends
	NoClient func()          // nobody has been connected for a while
	Quiet    func()          // nobody has called for a while, polls apart; not again before the next call
	Used     func()          // the first call after Quiet has come, polls apart
}

// Tracker counts the connections and calls of a ttrpc server: it is the server's Handshaker and its call interceptor.
type Tracker struct {
	config    Config
	handshake ttrpc.Handshaker
	noClient  *time.Timer // runs while conns is 0
	quiet     *time.Timer // runs from the last call on

	mu      sync.Mutex
	changed sync.Cond // something below has changed
	// +checklocks:mu
	conns map[*trackedConn]struct{}
	calls int // under way
	// +checklocks:mu
	methods map[string]int // of these
	ends    int            // of these, those that end the shim, and wait for the others
	// +checklocks:mu
	quietTime time.Duration // of the next call
	// +checklocks:mu
	wasQuiet bool // since the last call
	// +checklocks:mu
	late func() // not nil once Drain has seen the last answer: called for each later call

	// +checklocks:mu
	frozen bool // nothing is read, accepted or begun
	// +checklocks:mu
	acting int // NoClient and Quiet under way
	// +checklocks:mu
	accepting bool // an accept is under way
	// +checklocks:mu
	former []*trackedConn // connections of the former program that the server does not have yet
}

// NewTracker returns a Tracker with nobody connected.
func NewTracker(c Config) *Tracker {
	t := &Tracker{
		config: c, handshake: ttrpc.UnixSocketRequireSameUser(),
		conns: map[*trackedConn]struct{}{}, methods: map[string]int{}, quietTime: firstQuiet,
	}
	t.changed.L = &t.mu
	t.noClient = time.AfterFunc(noClientTimeout, func() {
		if t.Clients() == 0 {
			t.Act(c.NoClient)
		}
	})
	t.quiet = time.AfterFunc(firstQuiet, func() {
		t.mu.Lock()
		t.quietTime, t.wasQuiet = laterQuiet, true
		t.mu.Unlock()
		t.Act(c.Quiet)
	})
	return t
}

// Act calls f, unless the tracker is frozen, after which the timers start anew.
func (t *Tracker) Act(f func()) {
	t.mu.Lock()
	frozen := t.frozen
	if !frozen {
		t.acting++
	}
	t.mu.Unlock()
	if frozen {
		return
	}
	f()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acting--
	t.changed.Broadcast()
}

// Clients returns how many connections are open.
func (t *Tracker) Clients() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// Start starts the timers again.
func (t *Tracker) Start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.conns) == 0 {
		t.noClient.Reset(noClientTimeout)
	}
	t.quiet.Reset(t.quietTime)
}

// Stop ends the timers.
func (t *Tracker) Stop() {
	t.noClient.Stop()
	t.quiet.Stop()
}

// Handshake implements ttrpc.Handshaker, for connections that [Tracker.Listen] accepted.
func (t *Tracker) Handshake(ctx context.Context, conn net.Conn) (net.Conn, any, error) {
	c, ok := conn.(*trackedConn)
	if !ok {
		return nil, nil, fmt.Errorf("connection %T is not tracked", conn)
	}
	_, info, err := t.handshake.Handshake(ctx, c.Conn)
	return c, info, err
}

// Listen returns l with its connections tracked.
func (t *Tracker) Listen(l Listener) net.Listener { return &listener{l, t} }

// accepted notes the end of an accept, and tracks conn, unless it is nil.
func (t *Tracker) accepted(conn net.Conn) *trackedConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.accepting = false
	t.changed.Broadcast()
	if conn == nil {
		return nil
	}
	return t.trackLocked(conn)
}

// +checklocks:t.mu
func (t *Tracker) trackLocked(conn net.Conn) *trackedConn {
	c := &trackedConn{Conn: conn, tracker: t, writes: make(chan struct{}, 1)}
	t.conns[c] = struct{}{}
	t.noClient.Stop()
	return c
}

func (t *Tracker) connClosed(c *trackedConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.conns, c); len(t.conns) == 0 {
		t.noClient.Reset(noClientTimeout)
	}
	t.changed.Broadcast()
}

// Intercept returns next with its calls tracked. A call that comes after the last answer (see Drain) is never answered:
// its client learns that from the connection, which ends with the shim.
func (t *Tracker) Intercept(next ttrpc.UnaryServerInterceptor) ttrpc.UnaryServerInterceptor {
	return func(
		ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method,
	) (any, error) {
		poll := isPoll(info.FullMethod)
		method := path.Base(info.FullMethod)
		if late := t.count(1, method, poll); late != nil {
			late()
			<-ctx.Done() // with the connection
			return nil, ctx.Err()
		}
		defer func() { t.count(-1, method, poll) }()
		answer, err := next(ctx, unmarshal, info, call)
		if method == "Shutdown" || method == "ShutdownSandbox" {
			select {
			case <-t.config.Done:
				t.awaitOthers(ctx)
				t.config.Ends()
			default:
			}
		}
		return answer, err
	}
}

// count adds n to the calls under way, unless Drain has seen the last one.
func (t *Tracker) count(n int, method string, poll bool) (late func()) {
	used := false
	defer func() {
		if used && t.config.Used != nil {
			t.config.Used()
		}
	}()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.late == nil {
		t.calls += n
		t.methods[method] += n
	}
	if !poll {
		used, t.wasQuiet = t.wasQuiet, false
		t.quiet.Reset(t.quietTime)
	}
	t.changed.Broadcast()
	return t.late
}

// awaitOthers waits a while until the other calls are answered: a client that has the answer to Shutdown closes the
// connection, even with another call under way, such as another Delete.
func (t *Tracker) awaitOthers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hangUpTimeout)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends++
	t.changed.Broadcast()
	t.awaitLocked(ctx, func() bool { return t.calls == t.ends })
	t.ends--
}

// Drain waits until the calls under way are answered, or ctx ends. From then on none is answered, and late is called
// for each that comes. A ttrpc server that shuts down does not wait: it hangs up on a client whose only call under way
// is its first since the connection was idle (ttrpc, serverConn.run).
func (t *Tracker) Drain(ctx context.Context, late func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.awaitLocked(ctx, func() bool { return t.calls == 0 }); t.calls == 0 {
		t.late = late
		short, cancel := context.WithTimeout(ctx, hangUpTimeout)
		defer cancel()
		t.awaitLocked(short, func() bool { return len(t.conns) == 0 }) // +checklocksignore: called with t.mu
	}
}

// awaitLocked waits for done, or the end of ctx. It releases mu meanwhile.
func (t *Tracker) awaitLocked(ctx context.Context, done func() bool) {
	defer context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.changed.Broadcast()
	})()
	for !done() && ctx.Err() == nil {
		t.changed.Wait()
	}
}
