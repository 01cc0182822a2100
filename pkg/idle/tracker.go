// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package idle acts when the clients of a shim do nothing: the shim ends when nobody is connected, and gives memory
// back when nobody calls. Two timers of a [Tracker] run once, after the last connection and after the last call;
// [Tracker.Stop] ends them. Each type has one lock, which guards its fields.
package idle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"sync"
	"time"

	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
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
}

// Tracker counts the connections and calls of a ttrpc server: it is the server's Handshaker and its call interceptor.
type Tracker struct {
	config    Config
	handshake ttrpc.Handshaker
	noClient  *time.Timer // runs while conns is 0
	quiet     *time.Timer // runs from the last call on

	mu      sync.Mutex
	changed sync.Cond // conns, calls or ends has changed
	conns   int       // open
	calls   int       // under way
	ends    int       // of these, those that end the shim, and wait for the others
	// +checklocks:mu
	quietTime time.Duration // of the next call
	// +checklocks:mu
	late func() // not nil once Drain has seen the last answer: called for each later call
}

// NewTracker returns a Tracker with nobody connected.
func NewTracker(c Config) *Tracker {
	t := &Tracker{config: c, handshake: ttrpc.UnixSocketRequireSameUser(), quietTime: firstQuiet}
	t.changed.L = &t.mu
	t.noClient = time.AfterFunc(noClientTimeout, func() {
		if t.Clients() == 0 {
			c.NoClient()
		}
	})
	t.quiet = time.AfterFunc(firstQuiet, func() {
		t.mu.Lock()
		t.quietTime = laterQuiet
		t.mu.Unlock()
		c.Quiet()
	})
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
		if late := t.count(1, poll); late != nil {
			late()
			<-ctx.Done() // with the connection
			return nil, ctx.Err()
		}
		defer func() { t.count(-1, poll) }()
		answer, err := next(ctx, unmarshal, info, call)
		if name := path.Base(info.FullMethod); name == "Shutdown" || name == "ShutdownSandbox" {
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
func (t *Tracker) count(n int, poll bool) (late func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.late == nil {
		t.calls += n
	}
	if !poll {
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
		t.awaitLocked(short, func() bool { return t.conns == 0 })
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

// trackedConn is a connection that reports when it is closed.
type trackedConn struct {
	net.Conn
	closed func()
}

// Read ends the connection on any error that is not temporary: ttrpc would stop reading but keep it, and each call on
// it would hang.
func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := again(c.Conn.Read, b)
	if errno := unix.Errno(0); errors.As(err, &errno) && errno != unix.ECONNRESET {
		log.L.WithError(err).Error("a client's connection ends")
		err = fmt.Errorf("%w: %w", err, io.ErrUnexpectedEOF)
	}
	return n, err
}

// Write hides that the peer has gone. Otherwise ttrpc would drop what the peer sent before that has not been read yet,
// such as the end of a stdin; reading reports the end after that.
func (c *trackedConn) Write(b []byte) (int, error) {
	n, err := again(c.Conn.Write, b)
	if errors.Is(err, unix.EPIPE) {
		return len(b), nil
	}
	return n, err
}

// again calls transfer, which reads or writes b, until it no longer fails for lack of memory, or that has lasted for
// half a second. containerd considers a shim dead if its connection ends, and kills its containers.
func again(transfer func([]byte) (int, error), b []byte) (done int, err error) {
	for wait := time.Millisecond; ; wait *= 2 {
		n, err := transfer(b[done:])
		done += n
		if wait > time.Second/2 || !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENOBUFS) {
			return done, err
		}
		<-time.After(wait)
	}
}

func (c *trackedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
