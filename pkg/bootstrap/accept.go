// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/containerd/log"
)

// Bounds on the wait after an error of accept, each twice as long as the one before. containerd waits 2 s for a State.
const (
	firstAccept = time.Millisecond
	lastAccept  = 100 * time.Millisecond
)

// steadyListener accepts until it is closed. Any other error passes: a machine without memory or descriptors gets some again, a
// client has gone before it was accepted. A ttrpc server ends with most of them, ENOMEM and ENOBUFS for instance, and the shim
// and its containers would with it.
type steadyListener struct {
	net.Listener
	closing sync.Once
	closed  chan struct{} // ends the wait of Accept
}

func newSteadyListener(l net.Listener) *steadyListener {
	return &steadyListener{Listener: l, closed: make(chan struct{})}
}

// Accept implements net.Listener. Of the errors until the next connection it logs the first.
func (l *steadyListener) Accept() (net.Conn, error) {
	for wait := firstAccept; ; wait = min(2*wait, lastAccept) {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		if wait == firstAccept {
			log.L.WithError(err).Error("connections wait, and are tried again")
		}
		select {
		case <-time.After(wait):
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (l *steadyListener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
