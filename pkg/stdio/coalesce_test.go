// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLimiter(t *testing.T) {
	var p limiter
	now := time.Unix(1000, 0)
	burst := func() (n int) {
		for ; !now.Before(p.next()); n++ {
			p.spend(now)
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, smallMessages}, {coalesceDelay - 1, 0}, {1, 1}, {3 * coalesceDelay, 3}, {time.Hour, smallMessages}} {
		now = now.Add(step.after)
		if got := burst(); got != step.want {
			t.Errorf("%v later %d small messages may go, want %d", step.after, got, step.want)
		}
	}
}

// counter is a client that takes everything, and counts what it was sent.
type counter struct {
	collector
	sends int
}

func (c *counter) Send(ctx context.Context, b []byte) (int, error) {
	c.mu.Lock()
	c.sends++
	c.mu.Unlock()
	return c.collector.Send(ctx, b)
}

func TestStream_CoalescesSmallParts(t *testing.T) {
	r, x := newStreamed(t, "stdout")
	process := r.process()
	r.started()
	// Each write is a packet to the copier, which reads one at a time (pipe(2), O_DIRECT).
	if _, err := unix.FcntlInt(process.Fd(), unix.F_SETFL, unix.O_WRONLY|unix.O_DIRECT); err != nil {
		t.Fatal(err)
	}
	var c counter
	served := make(chan error, 1)
	go func() { served <- x.Serve(t.Context(), "c1-stdout", &c) }() // ends with the process's output
	begin := time.Now()
	text := pattern(10_000)
	for i := range text {
		write(t, process, text[i:i+1])
	}
	eventually(t, "all has come, and the process writes no more", func() bool { return c.len() == len(text) })
	most := smallMessages + int(time.Since(begin)/coalesceDelay) + len(text)/coalesceSize + 1
	if c.sends > most || string(c.got) != text {
		t.Errorf("%d bytes came in %d parts, want all %d in no more than %d", len(c.got), c.sends, len(text), most)
	}
	process.Close()
	wantServed(t, served, nil)
}

func TestStream_KeepsCoalescedPartsForTheNextClient(t *testing.T) {
	r, x := newStreamed(t, "stdout")
	process := r.process()
	r.started()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, served := serve(ctx, x, "c1-stdout")
	for range smallMessages {
		write(t, process, "x")
		first.read(t, "x")
	}
	write(t, process, "y")
	eventually(t, "it is gathered, or on its way if this took long", func() bool {
		g := goroutines()
		return strings.Contains(g, "(*stream).readUntil") || strings.Contains(g, "(*fakePeer).Send")
	})
	cancel()
	wantServed(t, served, context.Canceled)

	second, served := serve(t.Context(), x, "c1-stdout")
	_, _ = io.WriteString(process, "z")
	process.Close()
	second.read(t, "yz")
	wantServed(t, served, nil)
}
