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

// A client is sent a message for each read, and messages have to be few. ttrpc
// keeps 64 of a stream for who reads it; when a further one has waited for a
// second, it gives up the stream, and all that comes later is lost (ttrpc
// stream.go, receive). The window does not prevent that: it counts bytes, and
// containerd's client grants up to 128 KiB of them.
//
// Nor can messages be counted against what the client grants. It grants the next
// 64 KiB when it has read as much, so whoever stopped after some small messages
// would wait for a grant, and the client for more to read.
//
// So small parts are gathered: the first ones go at once, as somebody who types
// wants to see them, and then one in each pause, or when there is enough for a
// message. A client that stops reading a process that writes fast is sent 16
// small messages and 32 of 4 KiB, and then its window is used up. What writes
// less than that in a pause is less safe: there the client may stop for three
// seconds.
const (
	gatherEnough = 4 << 10 // bytes for which a message may always go
	gatherAtOnce = 16      // messages of less that need not wait
	gatherPause  = 50 * time.Millisecond
)

// pace says when the next small message may go.
type pace struct {
	paid time.Time // a pause for each message that went; those before now do not count
}

func (p *pace) next() time.Time { return p.paid.Add(-(gatherAtOnce - 1) * gatherPause) }

func (p *pace) spend(now time.Time) {
	if p.paid.Before(now) {
		p.paid = now
	}
	p.paid = p.paid.Add(gatherPause)
}

// gather reads on until there is enough to send, or a small message may go.
func (s *stream) gather(ctx context.Context, p *pace) error {
	if until := p.next(); len(s.unsent) < gatherEnough && time.Now().Before(until) {
		if err := s.readUntil(ctx, until); err != nil {
			return err
		}
	}
	if len(s.unsent) < gatherEnough {
		p.spend(time.Now())
	}
	return nil
}

// readUntil adds to unsent until there is enough, no more comes, or it is time.
func (s *stream) readUntil(ctx context.Context, t time.Time) error {
	if err := s.bound(ctx, t); err != nil {
		return err
	}
	for len(s.unsent) < gatherEnough {
		b, err := s.read(s.unsent)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) { // send will see the end itself
			break
		}
		if err != nil {
			return err
		}
		s.unsent = b
	}
	return s.bound(ctx, time.Time{})
}

// bound sets until when read waits; the zero time is for ever. It looks at ctx
// only then: an end that it does not see is yet to interrupt the read (send).
func (s *stream) bound(ctx context.Context, t time.Time) error {
	if err := s.reader.file.SetReadDeadline(t); err != nil {
		return err
	}
	return context.Cause(ctx)
}
