// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

// idleTimeout is how long a shim without a container waits for somebody to
// connect: containerd may have died between start and Create, and then nobody
// ever asks this shim to end. A containerd that restarts connects again within
// seconds, if there is anything to connect for.
const idleTimeout = 15 * time.Second

// attendance is the handshake of every connection and stands before every call,
// and counts those that are open and under way. When nobody has been connected
// for a while it calls absent. Its timer runs only then, so an idle shim that
// containerd knows is not woken.
type attendance struct {
	handshake ttrpc.Handshaker
	timeout   time.Duration
	timer     *time.Timer

	mu      sync.Mutex
	open    int
	calls   int
	changed chan struct{} // not nil while settle waits; closed when one of the two becomes 0
	late    func()        // from the last answer on: told of a call that comes after it
}

// newAttendance begins with nobody connected.
func newAttendance(timeout time.Duration, absent func()) *attendance {
	a := &attendance{handshake: ttrpc.UnixSocketRequireSameUser(), timeout: timeout}
	a.timer = time.AfterFunc(timeout, func() {
		a.mu.Lock()
		nobody := a.open == 0
		a.mu.Unlock()
		if nobody {
			absent()
		}
	})
	return a
}

// Handshake implements ttrpc.Handshaker.
func (a *attendance) Handshake(ctx context.Context, conn net.Conn) (net.Conn, any, error) {
	conn, info, err := a.handshake.Handshake(ctx, conn)
	if err != nil {
		return conn, info, err
	}
	a.mu.Lock()
	a.open++
	a.timer.Stop()
	a.mu.Unlock()
	return &counted{Conn: conn, gone: sync.OnceFunc(a.leave)}, info, nil
}

func (a *attendance) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if a.open == 0 {
		a.timer.Reset(a.timeout)
		a.tellLocked()
	}
}

// counting is next with its calls counted. One that comes when the shim has given its last answer finds it gone: it is
// never answered, and its client is told by the connection, which ends with the shim.
func (a *attendance) counting(next ttrpc.UnaryServerInterceptor) ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method) (any, error) {
		a.mu.Lock()
		late := a.late
		if late == nil {
			a.calls++
		}
		a.mu.Unlock()
		if late != nil {
			late()
			<-ctx.Done() // with the connection
			return nil, ctx.Err()
		}
		defer func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.calls--; a.calls == 0 {
				a.tellLocked()
			}
		}()
		return next(ctx, unmarshal, info, call)
	}
}

func (a *attendance) tellLocked() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// hangUpTimeout is for clients to hang up once they have their answers, as containerd does. One that does not has got
// them within that: only the writing is left then.
const hangUpTimeout = 100 * time.Millisecond

// settle waits until the calls under way are answered, or ctx ends; from then on none is, and late is told of one that
// comes. A ttrpc server that shuts down does not wait: it hangs up on a client whose only call under way is its first
// since the connection was idle (ttrpc, serverConn.run).
func (a *attendance) settle(ctx context.Context, late func()) {
	answered := a.await(ctx, func() bool {
		if a.calls == 0 {
			a.late = late
		}
		return a.calls == 0
	})
	if !answered {
		return
	}
	short, cancel := context.WithTimeout(ctx, hangUpTimeout)
	defer cancel()
	a.await(short, func() bool { return a.open == 0 })
}

// await waits for done, which is asked with mu held, and tells whether it came before the end of ctx.
func (a *attendance) await(ctx context.Context, done func() bool) bool {
	for {
		a.mu.Lock()
		if done() {
			a.mu.Unlock()
			return true
		}
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// stop ends the waiting.
func (a *attendance) stop() { a.timer.Stop() }

type counted struct {
	net.Conn
	gone func()
}

// Write does not tell that the peer has gone. ttrpc would drop what the peer had
// sent before and is not read yet, the end of a stdin say; reading tells it after
// that.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, unix.EPIPE) {
		return len(b), nil
	}
	return n, err
}

func (c *counted) Close() error {
	c.gone()
	return c.Conn.Close()
}
