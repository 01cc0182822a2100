// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
)

// idleTimeout is how long a shim without a container waits for somebody to
// connect: containerd may have died between start and Create, and then nobody
// ever asks this shim to end. A containerd that restarts connects again within
// seconds, if there is anything to connect for.
const idleTimeout = 15 * time.Second

// attendance is the handshake of every connection, and counts those that are
// open. When nobody has been connected for a while it calls absent. Its timer
// runs only then, so an idle shim that containerd knows is not woken.
type attendance struct {
	handshake ttrpc.Handshaker
	timeout   time.Duration
	timer     *time.Timer

	mu   sync.Mutex
	open int
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
	}
}

// unansweredTimeout is idleTimeout for a daemon whose start was killed before it
// answered. It is not nothing, for the sake of another start that joined it.
const unansweredTimeout = time.Second

// hurry shortens the waiting, if nobody is connected.
func (a *attendance) hurry() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == 0 {
		a.timer.Reset(unansweredTimeout)
	}
}

// stop ends the waiting.
func (a *attendance) stop() { a.timer.Stop() }

type counted struct {
	net.Conn
	gone func()
}

func (c *counted) Close() error {
	c.gone()
	return c.Conn.Close()
}
