// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// stream is one stream that a client of the StreamRegistry reads or writes. Between the client and the copier is a
// pipe, which takes the place of the fifo. Of an output, it is the copier's sink.
type stream struct {
	*pipeEnd // the copier's

	id       string
	registry *StreamRegistry
	removed  context.Context //nolint:containedctx // ends with remove: the life of the stream, and no caller's
	cancel   context.CancelFunc

	serving chan struct{} // one slot, held by the client that is being served

	// Of an output, guarded by serving.
	reader *pipeEnd // nil: the stream is stdin
	unsent []byte   // read, but not sent when its client went away
	once   sync.Once
	ended  chan struct{} // closed by once, when a client was sent everything

	abandoned atomic.Bool // an output to which no client is to come back

	writer *os.File // of stdin, held until CloseStdin
}

// openStream makes a stream and adds it to the registry. As with a fifo, stdin ends when CloseStdin was called and the
// client has gone or ended its side.
func (c Config) openStream(l location, output bool) (*stream, error) {
	if c.Host == nil {
		return nil, fmt.Errorf("scheme %q is not served here: %w", l.scheme, errdefs.ErrNotImplemented)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	s := &stream{id: l.id, registry: c.Host.StreamRegistry, serving: make(chan struct{}, 1), ended: make(chan struct{})}
	s.removed, s.cancel = context.WithCancel(context.Background())
	name := "stream " + l.id
	if output {
		s.reader, s.pipeEnd = newPipeEnd(p[0], name), newPipeEnd(p[1], name)
	} else {
		s.pipeEnd, s.writer = newPipeEnd(p[0], name), newHeld(p[1], name)
	}
	if err := s.registry.add(s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// end leaves what is in the pipe of an output to the client, and waits until it was sent.
func (s *stream) end(ctx context.Context) error {
	defer func() { _ = s.Close() }() // a pipe has no late errors
	_ = s.pipeEnd.Close()            // as above
	select {
	case <-s.ended:
		return nil
	case <-s.removed.Done(): // by Close or abandon; a slow client has until then
		select {
		case <-s.ended: // before
			return nil
		default:
		}
		return fmt.Errorf("the last bytes are not read: %w", context.Cause(ctx))
	}
}

// abandon ends an output if no client is there, or else when the last one leaves: what is written from then on is
// refused, and end does not wait.
func (s *stream) abandon() {
	s.abandoned.Store(true) // first, so that the client that has the slot sees it when it leaves
	select {
	case s.serving <- struct{}{}:
		s.remove()
		_ = s.reader.Close() // a pipe has no late errors
		<-s.serving
	default:
	}
}

func (s *stream) Close() error {
	s.remove()
	return closeAll(s.pipeEnd, s.reader, s.writer)
}

func (s *stream) remove() {
	s.cancel()
	s.registry.mu.Lock()
	defer s.registry.mu.Unlock()
	if s.registry.streams[s.id] == s {
		delete(s.registry.streams, s.id)
	}
}

// send sends the output to a client. What it has read and cannot send is kept for the next one.
func (s *stream) send(ctx context.Context, peer Peer) error {
	_ = s.reader.file.SetReadDeadline(time.Time{}) // fails only when it is closed, as the read below does
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = s.reader.file.SetReadDeadline(time.Unix(1, 0)) // fails only when it is closed, which does as well
	})
	defer func() {
		if !stop() {
			<-interrupted // or it would interrupt the next client
		}
	}()
	var p limiter
	for {
		if len(s.unsent) == 0 {
			b, err := s.read(nil)
			switch {
			case errors.Is(err, io.EOF):
				s.once.Do(func() { close(s.ended) })
				return nil
			case errors.Is(err, os.ErrDeadlineExceeded):
				return context.Cause(ctx)
			case err != nil:
				return err
			}
			s.unsent = b
		}
		if err := s.coalesce(ctx, &p); err != nil {
			return err
		}
		n, err := peer.Send(ctx, s.unsent)
		s.unsent = s.unsent[n:]
		if err != nil {
			return err
		}
	}
}

// read waits for output and appends it to b. It holds no buffer while it waits.
func (s *stream) read(b []byte) (_ []byte, err error) {
	werr := s.reader.conn.Read(func(fd uintptr) bool {
		buf := buffers.Get().(*[bufferSize]byte)
		defer buffers.Put(buf)
		var n int
		n, err = unix.Read(int(fd), buf[:])
		switch {
		case n > 0:
			b, err = append(b, buf[:n]...), nil
		case err == nil:
			err = io.EOF
		case errors.Is(err, unix.EAGAIN):
			return false
		}
		return true
	})
	if werr != nil {
		return nil, interrupted(werr)
	}
	return b, err
}

func (s *stream) receive(ctx context.Context, peer Peer) error {
	w, err := s.openWriter()
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()                         // a pipe has no late errors
	defer context.AfterFunc(ctx, func() { _ = w.Close() })() // ends a write that waits
	for {
		b, err := peer.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := w.write(b, func(int) {}); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return err
		}
	}
}

func (s *stream) openWriter() (*pipeEnd, error) {
	w, err := -1, error(nil)
	conn, _ := s.writer.SyscallConn() // fails only for a file that is nil
	if conn.Control(func(fd uintptr) {
		w, err = openFD(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_NONBLOCK, 0)
	}) != nil {
		return nil, fmt.Errorf("stdin is closed: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, err
	}
	return newPipeEnd(w, "stream "+s.id), nil
}

// StreamRegistry connects the streams of processes that lead to the shim's own ttrpc socket with their clients, by
// streaming id.
//
// Either may come first: CRI opens its streams before it calls Create (containerd internal/cri/io/helpers.go,
// newStdioStream). A client that goes away can come back: meanwhile output waits and stdin stays open. Each id has one
// client; a new one replaces the former, whose connection may be dead unnoticed.
type StreamRegistry struct {
	mu sync.Mutex
	// +checklocks:mu
	streams map[string]*stream
	// +checklocks:mu
	arrived chan struct{} // closed, and replaced, when a stream is added

	clients sync.Map // of *client, by the id of the stream
}

// client is one call of Serve.
type client struct{ cancel context.CancelCauseFunc }

// Peer is the connection of a client. Its methods return when ctx ends. Recv also returns once the client is gone,
// after it has returned all that the client sent.
type Peer interface {
	// Send sends output, all of it unless there is an error. n is how much was sent.
	Send(ctx context.Context, b []byte) (n int, err error)
	// Recv returns the next part of stdin, which is valid until the next call. The error is io.EOF when the client has
	// no more.
	Recv(ctx context.Context) ([]byte, error)
}

// Serve waits for the stream of that id to be opened and carries it to or from peer. It returns nil when the stream or
// the client ends, and an error when ctx does; what the client wrote to stdin before that is still delivered. The error
// is errdefs.ErrAborted when another client came.
func (x *StreamRegistry) Serve(call context.Context, id string, peer Peer) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(call))
	defer cancel(nil)
	detach := context.AfterFunc(call, func() { cancel(context.Cause(call)) })
	defer detach()
	c := &client{cancel}
	if former, ok := x.clients.Swap(id, c); ok {
		former.(*client).cancel(fmt.Errorf("another client came: %w", errdefs.ErrAborted))
	}
	defer x.clients.CompareAndDelete(id, c)
	s, err := x.await(ctx, id)
	if err != nil {
		return err
	}
	defer func() { // after the slot is released
		x.clients.CompareAndDelete(id, c)
		if _, another := x.clients.Load(id); !another && s.abandoned.Load() {
			s.abandon()
		}
	}()
	select {
	case s.serving <- struct{}{}:
		defer func() { <-s.serving }()
	case <-ctx.Done():
		return fmt.Errorf("stream %q: wait for the client before to let go: %w", id, context.Cause(ctx))
	}
	serve := s.send
	if s.reader == nil {
		detach() // Recv reports when there is no more
		serve = s.receive
	}
	defer context.AfterFunc(s.removed, func() { cancel(nil) })()
	if err := serve(ctx, peer); err != nil && s.removed.Err() == nil {
		return fmt.Errorf("stream %q: %w", id, err)
	}
	return nil
}

func (x *StreamRegistry) await(ctx context.Context, id string) (*stream, error) {
	for {
		x.mu.Lock()
		s, arrived := x.streams[id], x.arrived
		x.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("stream %q: wait for the process: %w", id, context.Cause(ctx))
		}
	}
}

func (x *StreamRegistry) add(s *stream) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.streams[s.id]; ok {
		return fmt.Errorf("streaming id %q: another process has it: %w", s.id, errdefs.ErrAlreadyExists)
	}
	x.streams[s.id] = s
	close(x.arrived)
	x.arrived = make(chan struct{})
	return nil
}

// Each read makes a message, and messages have to be few. ttrpc queues 64 of a stream for its reader. When a further
// one has waited for a second, ttrpc closes the stream and loses all that comes later (ttrpc stream.go, receive). The
// window does not prevent that: it counts bytes, and containerd's client grants up to 128 KiB of them. Nor can small
// messages count as more: the client grants the next 64 KiB only when it has read as much.
//
// So small parts are coalesced. The first ones are sent immediately, since a user who types wants to see them; then one
// is sent in each delay, or when there is enough for a message. A client that stops reading from a fast writer is sent
// 16 small messages and 32 of 4 KiB, and then its window is used up. That of a slow writer may stop for three seconds.
const (
	coalesceSize  = 4 << 10 // bytes that are always sent
	smallMessages = 16      // smaller messages that are sent without delay
	coalesceDelay = 50 * time.Millisecond
)

type limiter struct {
	full time.Time // when all small messages may be sent without delay again
}

func (p *limiter) next() time.Time { return p.full.Add(-(smallMessages - 1) * coalesceDelay) }

func (p *limiter) spend(now time.Time) {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(coalesceDelay)
}

// coalesce continues to read until there is enough to send or a small message may be sent.
func (s *stream) coalesce(ctx context.Context, p *limiter) error {
	if until := p.next(); len(s.unsent) < coalesceSize && time.Now().Before(until) {
		if err := s.readUntil(ctx, until); err != nil {
			return err
		}
	}
	if len(s.unsent) < coalesceSize {
		p.spend(time.Now())
	}
	return nil
}

// readUntil adds to unsent until there is enough, the output ends, or t. It checks ctx after it has set a deadline: if
// ctx ends later, its AfterFunc in send interrupts the read.
func (s *stream) readUntil(ctx context.Context, t time.Time) error {
	setDeadline := func(t time.Time) error { return cmp.Or(s.reader.file.SetReadDeadline(t), context.Cause(ctx)) }
	if err := setDeadline(t); err != nil {
		return err
	}
	for len(s.unsent) < coalesceSize {
		b, err := s.read(s.unsent)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) { // send will see the end itself
			break
		}
		if err != nil {
			return err
		}
		s.unsent = b
	}
	return setDeadline(time.Time{})
}
