// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"

	"sandbox.internal/shim/integration/harness"
)

// counted is a hash that knows how much it was given. One goroutine writes, and it is read after that ended.
type counted struct {
	io.Writer
	n int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n += int64(n)
	return n, err
}

func TestAGigabyteThroughStandardInputAndOutputArrivesIntact(t *testing.T) {
	e := newEnv(t)
	// A prime length, so that no two turns fall on pages and buffers in the same way.
	const length, turns = 16777213, 64
	block := make([]byte, length)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block) // never fails, by its documentation
	var in []io.Reader
	for range turns {
		in = append(in, bytes.NewReader(block))
	}
	sent, came := sha256.New(), sha256.New()
	out := &counted{Writer: came}
	c := e.run("c1", config{}, "sleep", "1000")
	spec, err := c.container.Spec(e.ctx)
	e.must(err, "spec")
	spec.Process.Args = []string{"cat"}
	streams := cio.WithStreams(io.TeeReader(io.MultiReader(in...), sent), out, io.Discard)
	p, err := c.Task.Exec(e.ctx, "x", spec.Process, cio.NewCreator(streams, cio.WithFIFODir(e.containerd.Fifos)))
	e.must(err, "exec")
	exited, err := p.Wait(e.ctx)
	e.must(err, "wait")
	began := time.Now()
	e.must(p.Start(e.ctx), "start")
	e.must(p.CloseIO(e.ctx, withStdin), "close stdin")
	select {
	case <-exited: // however long it takes
	case <-e.ctx.Done():
		t.Fatalf("%d bytes came within %v", out.n, time.Since(began))
	}
	x := &process{Process: p, e: e, err: &harness.Buffer{}}
	x.delete() // waits for the last byte
	t.Logf("%d bytes there and back in %v", out.n, time.Since(began))
	if want := int64(length) * turns; out.n != want || !bytes.Equal(came.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d bytes came back, with the hash %x, want %d with %x", out.n, came.Sum(nil), want, sent.Sum(nil))
	}
	c.kill()
}
