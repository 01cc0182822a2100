// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package containerd_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"

	"sandbox.internal/shim/integration/harness"
)

// compared checks that what is written to it is block, over and over. One goroutine writes, and it is read after that
// ended.
type compared struct {
	block []byte
	n     int64 // bytes written
	wrong int64 // first that differs, or -1
}

func (c *compared) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		want := c.block[c.n%int64(len(c.block)):]
		want = want[:min(len(want), len(rest))]
		if c.wrong < 0 && !bytes.Equal(rest[:len(want)], want) {
			for i := range want {
				if rest[i] != want[i] {
					c.wrong = c.n + int64(i)
					break
				}
			}
		}
		c.n += int64(len(want))
		rest = rest[len(want):]
	}
	return len(b), nil
}

func TestStreams_GigabyteArrivesIntact(t *testing.T) {
	e := newEnv(t)
	// A prime length, so that no two turns fall on pages and buffers in the same way.
	const length = 16777213
	turns := harness.Fewer(64)
	block := make([]byte, length)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block) // never fails, by its documentation
	var in []io.Reader
	for range turns {
		in = append(in, bytes.NewReader(block))
	}
	out := &compared{block: block, wrong: -1}
	c := e.run("c1", config{}, "sleep", "1000")
	spec, err := c.container.Spec(e.ctx)
	e.must(err, "spec")
	spec.Process.Args = []string{"cat"}
	streams := cio.WithStreams(io.MultiReader(in...), out, io.Discard)
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
	if want := int64(length) * int64(turns); out.n != want || out.wrong >= 0 {
		t.Errorf("%d bytes came back, the first wrong one at %d; want %d, all right (-1)", out.n, out.wrong, want)
	}
	c.kill()
}
