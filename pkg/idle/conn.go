// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Listener is the shim's socket.
type Listener interface {
	net.Listener
	syscall.Conn
	SetDeadline(at time.Time) error
}

// listener gives the server tracked connections: first those of the former program.
type listener struct {
	Listener
	tracker *Tracker
}

func (l *listener) Accept() (net.Conn, error) {
	t := l.tracker
	for {
		if c := t.awaitThaw(&t.accepting); c != nil { // +checklocksignore: it takes the address
			return c, nil
		}
		conn, err := l.Listener.Accept()
		c := t.accepted(conn)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if err != nil {
				return nil, err
			}
			return c, nil
		}
	}
}

// Layout of ttrpc's messages (ttrpc, channel.go and PROTOCOL.md): the length, the number of the stream, a type, flags.
const (
	headerSize   = 10
	typeRequest  = 1
	typeResponse = 2
	longest      = 4 << 20 // of a message; ttrpc reads over a longer one
)

// message is a message of which the beginning is known.
type message []byte

func (m message) size() int      { return headerSize + int(binary.BigEndian.Uint32(m)) }
func (m message) stream() uint32 { return binary.BigEndian.Uint32(m[4:]) }
func (m message) kind() byte     { return m[8] }

// follower splits the bytes of one direction into messages.
type follower struct {
	part message // the beginning of a message: in the direction of answers its header alone
	left int     // bytes of the message that are not kept
}

// follow takes bytes, and calls ended for each message that ends in them. With keep the message is whole, unless it is
// longer than ttrpc allows; otherwise it is the header.
func (f *follower) follow(b []byte, keep bool, ended func(message)) {
	kept := func() bool { return keep && f.part.size() <= headerSize+longest }
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, len(b))
			b, f.left = b[n:], f.left-n
		} else {
			want := headerSize
			if len(f.part) >= headerSize {
				want = f.part.size()
			}
			n := min(want-len(f.part), len(b))
			f.part, b = append(f.part, b[:n]...), b[n:]
			if len(f.part) == headerSize && !kept() {
				f.left = f.part.size() - headerSize
			}
		}
		if f.left == 0 && len(f.part) >= headerSize && (!kept() || len(f.part) == f.part.size()) {
			whole := f.part
			f.part = nil
			ended(whole)
		}
	}
}

// trackedConn is a connection of which is known which requests have no answer yet, and that reports when it is closed.
type trackedConn struct {
	net.Conn
	tracker *Tracker
	closing sync.Once
	writes  chan struct{} // holds one while an answer is written, and while the tracker is frozen

	// Guarded by the tracker's mu.
	reading bool      // a read is under way
	in      follower  // requests
	pending []message // those that have no answer
	replay  []byte    // requests that the former program has not answered, and the beginning of another one

	out follower // guarded by writes
}

// Read ends the connection on any error that is not temporary: ttrpc would stop reading but keep it, and each call on
// it would hang.
func (c *trackedConn) Read(b []byte) (n int, err error) {
	t := c.tracker
	for {
		t.awaitThaw(&c.reading)
		if len(c.replay) > 0 { // which nobody else changes
			n, err = copy(b, c.replay), nil
			c.replay = c.replay[n:]
		} else {
			n, err = again(c.Conn.Read, b)
		}
		t.mu.Lock()
		c.in.follow(b[:n], true, c.requestedLocked)
		c.reading = false
		t.changed.Broadcast()
		t.mu.Unlock()
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if errno := unix.Errno(0); errors.As(err, &errno) && errno != unix.ECONNRESET {
		log.L.WithError(err).Error("a client's connection ends")
		err = fmt.Errorf("%w: %w", err, io.ErrUnexpectedEOF)
	}
	return n, err
}

func (c *trackedConn) requestedLocked(m message) {
	if m.kind() == typeRequest {
		c.pending = append(c.pending, m)
	}
}

// Write hides that the peer has gone. Otherwise ttrpc would drop what the peer sent before that has not been read yet,
// such as the end of a stdin; reading reports the end after that.
func (c *trackedConn) Write(b []byte) (int, error) {
	c.writes <- struct{}{}
	defer func() { <-c.writes }()
	n, err := again(c.Conn.Write, b)
	c.out.follow(b[:n], false, c.answered)
	if errors.Is(err, unix.EPIPE) {
		return len(b), nil
	}
	return n, err
}

func (c *trackedConn) answered(m message) {
	c.tracker.mu.Lock()
	defer c.tracker.mu.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(p message) bool {
		return m.kind() == typeResponse && p.stream() == m.stream()
	})
	c.tracker.changed.Broadcast()
}

// Close is called by the server once it has read the end.
func (c *trackedConn) Close() error {
	c.closing.Do(func() { c.tracker.connClosed(c) })
	return c.Conn.Close()
}

// method returns the name of the method that a request is for.
func (m message) method() string {
	var r ttrpc.Request
	if len(m) == headerSize || proto.Unmarshal(m[headerSize:], &r) != nil {
		return "a request that cannot be decoded"
	}
	return r.Method
}

// waits reports whether a method answers when something ends, which can take days.
func waits(method string) bool { return strings.HasPrefix(method, "Wait") }

// answer sends the answer to the request of a stream.
func (c *trackedConn) answer(stream uint32, r *ttrpc.Response) error {
	payload, err := proto.Marshal(r)
	if err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	head = append(binary.BigEndian.AppendUint32(head, stream), typeResponse, 0)
	_, err = c.Write(append(head, payload...))
	return err
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
