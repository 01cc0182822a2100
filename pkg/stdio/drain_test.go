// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

var unixPast = time.Unix(1, 0)

// wantDrainError matches the whole text; T stands for any duration, and N for how much happened to be in the copier.
func wantDrainError(t *testing.T, s *Streams, want string) {
	t.Helper()
	var err error
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	within(t, "Drain", func() { err = s.Drain(ctx) })
	if err == nil {
		t.Fatalf("Drain() = nil, want %q", want)
	}
	got := regexp.MustCompile(`[0-9]+ bytes and`).ReplaceAllString(err.Error(), "N bytes and")
	got = regexp.MustCompile(`[0-9.]+(ms|s)\b`).ReplaceAllString(got, "T")
	if got != want {
		t.Errorf("Drain() = %q, want %q", got, want)
	}
}

// drainAsDelete drains until there is nothing to wait for but who holds an output.
func (r *env) drainAsDelete() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(ctx) }()
	testx.Eventually(r.t, "Drain has looked", func() bool {
		return !slices.ContainsFunc(r.outputCopiers(), func(c *copier) bool { return !c.exited.Load() })
	})
	testx.Eventually(r.t, "all that was written is handed on", func() bool { return r.DrainMayStop(true) })
	cancel()
	if err := <-drained; err != nil {
		r.t.Errorf("Drain() = %v, want nil", err)
	}
}

func TestDrain_WaitsForTheLastWriter(t *testing.T) {
	r := newEnv(t, false, "stdout")
	out, process, grandchild := r.client("stdout"), r.process(), r.process()
	r.started()
	process.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	for range 3 {
		write(t, grandchild, "later")
		wantRead(t, out, "later")
		if r.DrainMayStop(false) {
			t.Error("DrainMayStop, although another process holds the output")
		}
	}
	select {
	case err := <-drained:
		t.Errorf("Drain() = %v, although another process holds the output", err)
	default:
	}
	write(t, grandchild, "last")
	grandchild.Close()
	wantRest(t, out, "last")
	if err := <-drained; err != nil {
		t.Errorf("Drain() = %v, want nil", err)
	}
}

func TestDrain_EndsAlthoughAGrandchildWritesOn(t *testing.T) {
	r := newEnv(t, false, "stdout")
	out := r.client("stdout")
	grandchild := r.process()
	r.started()
	writes := make(chan struct{})
	go func() {
		defer close(writes)
		_, _ = io.Copy(grandchild, zeros{}) // ends with EPIPE at Close
	}()
	reads := make(chan struct{})
	go func() {
		defer close(reads)
		_, _ = io.Copy(io.Discard, out) // ends at Close
	}()
	r.drainAsDelete()
	within(t, "Close", func() { _ = r.Close() })
	<-writes
	<-reads
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestDrain_GivesUpOnAnAbsentReader(t *testing.T) {
	r := newEnv(t, false, "stdout")
	process := r.process()
	r.started()
	write(t, process, pattern(2*bufferSize)) // the fifo and the pipe are full
	testx.Eventually(t, "the copier is blocked", blocked)
	process.Close()
	wantDrainError(t, r.Streams, "drain stdout: N bytes and what is in the pipe are not handed on: context deadline exceeded")
	within(t, "Close", func() { _ = r.Close() })
}

func TestDrain_SaysThatTheLastBytesHaveNoReader(t *testing.T) {
	r := newEnv(t, false, "stdout")
	testx.Must(t, r.run("echo", "hello").Wait())
	testx.Eventually(t, "only a reader is missing", func() bool { return r.DrainMayStop(false) })
	wantDrainError(t, r.Streams, "drain stdout: the last bytes have no reader: context deadline exceeded")
}

func TestDrainMayStop_LastBytesWithoutAReader(t *testing.T) {
	r := newEnv(t, false, "stdout", "stderr")
	out, process := r.client("stdout"), r.process()
	r.started()
	write(t, process, "hello")
	if r.DrainMayStop(false) {
		t.Error("DrainMayStop while the process writes")
	}
	wantRead(t, out, "hello")
	write(t, process, "world")
	if r.DrainMayStop(false) {
		t.Error("DrainMayStop while there is a reader")
	}
	out.Close() // before the output ends: what is in the fifo then is for who has it open
	process.Close()
	testx.Eventually(t, "the last bytes are abandoned", func() bool { return r.DrainMayStop(false) })
	again := r.client("stdout")
	wantRest(t, again, "world") // and the end, since somebody has come to read
	if err := r.Drain(t.Context()); err != nil || !r.DrainMayStop(false) {
		t.Errorf("when all was read: Drain() = %v, DrainMayStop = %t", err, r.DrainMayStop(false))
	}
}

func TestDrain_SaysThatCloseCutTheOutput(t *testing.T) {
	r := newEnv(t, false, "stdout")
	process := r.process()
	r.started()
	write(t, process, pattern(2*bufferSize))
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	within(t, "Close", func() { _ = r.Close() })
	if err := <-drained; !errors.Is(err, errdefs.ErrAborted) {
		t.Errorf("Drain() = %v, want ErrAborted", err)
	}
}

// What the process wrote before its exit must be there when Drain returns, however the copier and the exit fall
// together.
func TestDrain_LosesNothing(t *testing.T) {
	text := pattern(bufferSize)
	for range 50 {
		r := newEnv(t, false, "stdout")
		out, process := r.client("stdout"), r.process()
		grandchild := r.process()
		r.started()
		write(t, process, text)
		process.Close()
		r.drainAsDelete()
		within(t, "Close", func() { _ = r.Close() })
		grandchild.Close()
		wantRest(t, out, text)
	}
}
