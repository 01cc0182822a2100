// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// Each read makes a message, and messages have to be few. ttrpc queues 64 of a stream for its reader. When a further
// one has waited for a second, ttrpc closes the stream and loses all that comes later (ttrpc stream.go, receive). The
// window does not prevent that: it counts bytes, and containerd's client grants up to 128 KiB of them.
//
// Nor can small messages count as more against the window. The client grants the next 64 KiB when it has read as much,
// so the sender would wait for a grant, and the client for more to read.
//
// So small parts are coalesced. The first ones go at once, since somebody who types wants to see them; then one goes in
// each delay, or when there is enough for a message. A client that stops reading a fast writer is sent 16 small
// messages and 32 of 4 KiB, and then its window is used up. A slower writer is less safe: its client may stop for three
// seconds.
const (
	coalesceSize  = 4 << 10 // bytes that always go
	smallMessages = 16      // messages of less that go without delay
	coalesceDelay = 50 * time.Millisecond
)

// limiter says when the next small message may go.
type limiter struct {
	full time.Time // when all small messages may go at once again
}

func (p *limiter) next() time.Time { return p.full.Add(-(smallMessages - 1) * coalesceDelay) }

func (p *limiter) spend(now time.Time) {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(coalesceDelay)
}

// coalesce reads on until there is enough to send or a small message may go.
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

// readUntil adds to unsent until there is enough, the output ends, or t.
func (s *stream) readUntil(ctx context.Context, t time.Time) error {
	if err := s.setDeadline(ctx, t); err != nil {
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
	return s.setDeadline(ctx, time.Time{})
}

// setDeadline limits how long read waits; the zero time is no limit. It checks ctx only after that: if ctx ends later,
// its AfterFunc in send interrupts the read.
func (s *stream) setDeadline(ctx context.Context, t time.Time) error {
	if err := s.reader.file.SetReadDeadline(t); err != nil {
		return err
	}
	return context.Cause(ctx)
}
