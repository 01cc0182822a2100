// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

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
