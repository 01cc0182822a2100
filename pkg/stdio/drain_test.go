// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

var unixPast = time.Unix(1, 0)

// wantDrainError matches the whole text; T stands for any duration, and N for
// how much happened to be in the copier.
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

func TestDrainDoesNotWaitForAGrandchild(t *testing.T) {
	r := newRig(t, false, "stdout", "stderr")
	out := r.client("stdout")
	cmd := r.run("sh", "-c", "sleep 1000 & echo $!")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	within(t, "Drain", func() {
		if err := r.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v, want nil", err)
		}
	})
	within(t, "Close", func() { _ = r.Close() })
	got, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(got)))
	if err != nil {
		t.Fatalf("output %q, want a pid", got)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestDrainEndsAlthoughAGrandchildWritesOn(t *testing.T) {
	r := newRig(t, false, "stdout")
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
	r.grace = time.Millisecond
	within(t, "Drain", func() {
		if err := r.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v, want nil", err)
		}
	})
	within(t, "Close", func() { _ = r.Close() })
	<-writes
	<-reads
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func TestDrainGivesUpOnAnAbsentReader(t *testing.T) {
	r := newRig(t, false, "stdout")
	process := r.process()
	r.started()
	write(t, process, pattern(2*bufferSize)) // the fifo and the pipe are full
	eventually(t, "the copier is blocked", blocked)
	process.Close()
	wantDrainError(t, r.Streams, "drain stdout: N bytes and what is in the pipe are not handed on after T: context deadline exceeded")
	within(t, "Close", func() { _ = r.Close() })
}

func TestDrainSaysWhenTheLastBytesHaveNoReader(t *testing.T) {
	r := newRig(t, false, "stdout")
	if err := r.run("echo", "hello").Wait(); err != nil {
		t.Fatal(err)
	}
	r.grace = time.Millisecond
	wantDrainError(t, r.Streams, "drain stdout: the last bytes have no reader after T: context deadline exceeded")
}

func TestLastBytesWithoutAReaderAreAbandoned(t *testing.T) {
	r := newRig(t, false, "stdout", "stderr")
	out, process := r.client("stdout"), r.process()
	r.started()
	write(t, process, "hello")
	if r.Abandoned() {
		t.Error("Abandoned while the process writes")
	}
	wantRead(t, out, "hello")
	write(t, process, "world")
	if r.Abandoned() {
		t.Error("Abandoned while there is a reader")
	}
	out.Close() // before the output ends: what is in the fifo then is for who has it open
	process.Close()
	eventually(t, "the last bytes are abandoned", r.Abandoned)
	again := r.client("stdout")
	if r.Abandoned() {
		t.Error("Abandoned although a reader has come back")
	}
	wantRest(t, again, "world")
	eventually(t, "the end", func() bool { return r.Drain(t.Context()) == nil })
	if r.Abandoned() {
		t.Error("Abandoned when all was read")
	}
}

func TestDrainIsPatientWithASlowReader(t *testing.T) {
	r := newRig(t, false, "stdout")
	out, process := r.client("stdout"), r.process()
	r.started()
	text := pattern(2 * bufferSize)
	write(t, process, text)
	process.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	for rest := text; rest != ""; {
		n := min(len(rest), 4096)
		wantRead(t, out, rest[:n])
		rest = rest[n:]
		<-tick.C
	}
	if err := <-drained; err != nil {
		t.Errorf("Drain() = %v, want nil", err)
	}
	wantRest(t, out, "")
}

func TestDrainEndsWithItsContext(t *testing.T) {
	r := newRig(t, false, "stdout")
	process := r.process()
	r.started()
	write(t, process, pattern(2*bufferSize))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain() = %v, want context.Canceled", err)
	}
}

func TestDrainSaysThatCloseCutTheOutput(t *testing.T) {
	r := newRig(t, false, "stdout")
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

// What the process wrote before its exit must be there when Drain returns,
// however the copier and the exit fall together.
func TestDrainLosesNothing(t *testing.T) {
	text := pattern(bufferSize)
	for range 50 {
		r := newRig(t, false, "stdout")
		out, process := r.client("stdout"), r.process()
		grandchild := r.process()
		r.started()
		r.grace = time.Nanosecond
		write(t, process, text)
		process.Close()
		if err := r.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		within(t, "Close", func() { _ = r.Close() })
		grandchild.Close()
		wantRest(t, out, text)
	}
}

func TestDrainWithoutProcessReturnsAtOnce(t *testing.T) {
	r := newRig(t, false, "stdin", "stdout")
	if err := r.Drain(t.Context()); err != nil {
		t.Errorf("Drain() = %v, want nil", err)
	}
}
