// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package idle tracks what the clients of a shim do, and acts when they do nothing: the shim ends when nobody is
// connected, and gives memory back when nobody calls.
//
// Goroutines: two timers of a [Tracker], which run once after the last connection and the last call; [Tracker.Stop]
// ends them. So an idle shim does not wake up.
// Locks: mu of a Tracker is held during a few assignments. [Memory] has one for a single goroutine at a time.
package idle

import (
	"context"
	"net"
	"path"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
)

const (
	// noClientTimeout is how long nobody must be connected before [Config.NoClient] is called. containerd may have died
	// between start and Create, and then nobody ever asks this shim to end. A containerd that restarts connects again
	// within seconds, if there is anything to connect for.
	noClientTimeout = 15 * time.Second
	// firstQuiet and laterQuiet are how long nobody must call before [Config.Quiet] is called: first soon after the
	// container started, later after more than the ten seconds between the probes of a kubelet, which would otherwise
	// pay for the pages that they bring back.
	firstQuiet = 2 * time.Second
	laterQuiet = 15 * time.Second
	// hangUpTimeout is how long clients have to hang up once they have their answers, as containerd does. A client that
	// does not hang up has them within that time: only the writing is left then. It also bounds the wait for answers
	// that come before that of Shutdown.
	hangUpTimeout = 100 * time.Millisecond
)

// isPoll reports whether clients call a method at intervals, as containerd's CRI plugin does each second (containerd
// internal/cri/server/stats_collector.go). If polls counted as activity, the shim would never be quiet. They need
// little of the program.
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
}

// Tracker counts the connections and calls of a ttrpc server: it is the server's Handshaker and its call interceptor.
type Tracker struct {
	config    Config
	handshake ttrpc.Handshaker
	noClient  *time.Timer // runs while conns is 0
	quiet     *time.Timer // runs from the last call on

	mu    sync.Mutex
	conns int // open
	calls int // under way
	ends  int // of these, those that end the shim, and wait for the others
	// +checklocks:mu
	quietTime time.Duration
	changed   chan struct{} // not nil while somebody waits; closed when conns becomes 0, or calls becomes ends
	late      func()        // not nil once Drain has seen the last answer: called for each later call
}

// NewTracker returns a Tracker with nobody connected.
func NewTracker(c Config) *Tracker {
	t := &Tracker{config: c, handshake: ttrpc.UnixSocketRequireSameUser(), quietTime: firstQuiet}
	t.noClient = time.AfterFunc(noClientTimeout, t.whenNoClient)
	t.quiet = time.AfterFunc(firstQuiet, t.whenQuiet)
	return t
}

// Clients returns how many connections are open.
func (t *Tracker) Clients() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conns
}

// Stop ends the timers.
func (t *Tracker) Stop() {
	t.noClient.Stop()
	t.quiet.Stop()
}

func (t *Tracker) whenNoClient() {
	t.mu.Lock()
	nobody := t.conns == 0
	t.mu.Unlock()
	if nobody {
		t.config.NoClient()
	}
}

func (t *Tracker) whenQuiet() {
	t.mu.Lock()
	t.quietTime = laterQuiet
	t.mu.Unlock()
	t.config.Quiet()
}

// Handshake implements ttrpc.Handshaker.
func (t *Tracker) Handshake(ctx context.Context, conn net.Conn) (net.Conn, any, error) {
	conn, info, err := t.handshake.Handshake(ctx, conn)
	if err != nil {
		return conn, info, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns++
	t.noClient.Stop()
	return &trackedConn{Conn: conn, closed: sync.OnceFunc(t.connClosed)}, info, nil
}

func (t *Tracker) connClosed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns--; t.conns == 0 {
		t.noClient.Reset(noClientTimeout)
		t.signalLocked()
	}
}

// Intercept returns next with its calls tracked. A call that comes after the last answer (see Drain) is never answered:
// its client learns that from the connection, which ends with the shim.
func (t *Tracker) Intercept(next ttrpc.UnaryServerInterceptor) ttrpc.UnaryServerInterceptor {
	return func(
		ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method,
	) (any, error) {
		poll := isPoll(info.FullMethod)
		if late := t.callBegins(poll); late != nil {
			late()
			<-ctx.Done() // with the connection
			return nil, ctx.Err()
		}
		defer t.callEnds(poll)
		answer, err := next(ctx, unmarshal, info, call)
		if name := path.Base(info.FullMethod); (name == "Shutdown" || name == "ShutdownSandbox") && t.ending() {
			t.awaitOthers(ctx)
			t.config.Ends()
		}
		return answer, err
	}
}

func (t *Tracker) callBegins(poll bool) (late func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.late == nil {
		t.calls++
	}
	if !poll {
		t.quiet.Reset(t.quietTime)
	}
	return t.late
}

func (t *Tracker) callEnds(poll bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !poll {
		t.quiet.Reset(t.quietTime)
	}
	if t.calls--; t.calls == t.ends {
		t.signalLocked()
	}
}

func (t *Tracker) ending() bool {
	select {
	case <-t.config.Done:
		return true
	default:
		return false
	}
}

// awaitOthers waits a while until the other calls are answered: a client that has the answer to Shutdown closes the
// connection, even with another call under way, such as another Delete.
func (t *Tracker) awaitOthers(ctx context.Context) {
	t.mu.Lock()
	t.ends++
	t.mu.Unlock()
	short, cancel := context.WithTimeout(ctx, hangUpTimeout)
	defer cancel()
	t.await(short, func() bool { return t.calls == t.ends })
	t.mu.Lock()
	t.ends--
	t.mu.Unlock()
}

func (t *Tracker) signalLocked() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// Drain waits until the calls under way are answered, or ctx ends. From then on none is answered, and late is called
// for each that comes. A ttrpc server that shuts down does not wait: it hangs up on a client whose only call under way
// is its first since the connection was idle (ttrpc, serverConn.run).
func (t *Tracker) Drain(ctx context.Context, late func()) {
	answered := t.await(ctx, func() bool {
		if t.calls == 0 {
			t.late = late
		}
		return t.calls == 0
	})
	if !answered {
		return
	}
	short, cancel := context.WithTimeout(ctx, hangUpTimeout)
	defer cancel()
	t.await(short, func() bool { return t.conns == 0 })
}

// await waits for done, which is called with mu held, and reports whether it came before the end of ctx.
func (t *Tracker) await(ctx context.Context, done func() bool) bool {
	for {
		t.mu.Lock()
		if done() {
			t.mu.Unlock()
			return true
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
