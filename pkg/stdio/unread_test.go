// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// awaitingReaders reports whether n copiers have bytes that nobody has come to read.
func awaitingReaders(n int) func() bool {
	return func() bool { return strings.Count(goroutines(), "(*fifoOutput).awaitReader(") == n }
}

func TestFifo_EachReaderThatComesLateIsNoticed(t *testing.T) {
	r := newEnv(t, false, "stdout")
	if err := r.run("echo", "hello").Wait(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	eventually(t, "the copier waits for a reader", awaitingReaders(1))
	wantRest(t, r.client("stdout"), "hello\n")
	within(t, "Drain", func() {
		if err := <-drained; err != nil {
			t.Errorf("Drain() = %v, want nil", err)
		}
	})
}

// unreadEnv is an env whose output is not kept for long where nobody reads it.
func unreadEnv(t *testing.T) *env {
	t.Helper()
	checkLeaks(t)
	dir := fifos(t, "stdout", "stderr")
	c := Config{Stdout: filepath.Join(dir, "stdout"), Stderr: filepath.Join(dir, "stderr"), KeepUnread: time.Millisecond}
	return &env{t, mustOpen(t, c), dir}
}

// wantLetGo drains and checks that no descriptor of the fifos is left. An N in want stands for any number.
func (r *env) wantLetGo(want string) {
	r.t.Helper()
	within(r.t, "Drain", func() {
		err := r.Drain(r.t.Context())
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(want), "N", "[1-9][0-9]*") + "$"
		if !errors.Is(err, errdefs.ErrDataLoss) || !regexp.MustCompile(pattern).MatchString(err.Error()) {
			r.t.Errorf("Drain() = %v, want %s", err, want)
		}
	})
	eventually(r.t, "no descriptor of the fifos", func() bool {
		return !slices.ContainsFunc(openFDs(), func(fd string) bool { return strings.Contains(fd, r.dir) })
	})
}

func TestFifo_LastBytesThatNobodyComesToReadAreLetGo(t *testing.T) {
	r := unreadEnv(t)
	if err := r.run("sh", "-c", "echo hello; echo oops >&2").Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copiers wait for readers", awaitingReaders(2))
	r.wantLetGo("drain stdout: the last 6 bytes are not read: nobody came within 1ms: data loss\n" +
		"drain stderr: the last 5 bytes are not read: nobody came within 1ms: data loss")
}

func TestFifo_MoreThanItHoldsThatNobodyComesToReadIsLetGo(t *testing.T) {
	r := unreadEnv(t)
	process := r.process()
	r.started()
	write(t, process, pattern(2*bufferSize)) // the fifo and the pipe are full
	eventually(t, "the copier is blocked", blocked)
	process.Close()
	r.wantLetGo("drain stdout: N bytes could not be written: data loss") // N depends on how full the fifo's pages are
}

func TestFifo_WhoWritesToNobodyIsNeitherBlockedNorKilled(t *testing.T) {
	r := unreadEnv(t)
	process, daemon := r.process(), r.process()
	r.started()
	process.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	within(t, "a daemon's write", func() { write(t, daemon, pattern(10*bufferSize)) }) // many times what the fifo and the pipe hold
	daemon.Close()
	if err := <-drained; !errors.Is(err, errdefs.ErrDataLoss) {
		t.Errorf("Drain() = %v, want ErrDataLoss", err)
	}
}

func TestFifo_AReaderThatIsThereIsNotLetGo(t *testing.T) {
	r := unreadEnv(t)
	out, process := r.client("stdout"), r.process()
	r.started()
	text := pattern(2 * bufferSize)
	write(t, process, text)
	eventually(t, "the copier is blocked", blocked)
	process.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	<-r.kept.Done() // what has no reader is let go
	wantRest(t, out, text)
	if err := <-drained; err != nil {
		t.Errorf("Drain() = %v, want nil", err)
	}
}

func TestStream_WithoutAClientIsLetGo(t *testing.T) {
	for _, n := range []int{6, bufferSize + 1} { // less and more than its pipe holds
		r, _ := newStreamedKept(t, time.Millisecond, "stdout")
		process := r.process()
		r.started()
		write(t, process, pattern(n))
		process.Close()
		within(t, "Drain", func() {
			if err := r.Drain(t.Context()); !errors.Is(err, errdefs.ErrDataLoss) {
				t.Errorf("Drain() = %v, want ErrDataLoss", err)
			}
		})
	}
}

func TestStream_AClientThatIsThereIsNotLetGo(t *testing.T) {
	r, x := newStreamedKept(t, time.Millisecond, "stdout")
	client, served := serve(t.Context(), x, "c1-stdout")
	text := pattern(bufferSize)
	process := r.process()
	r.started()
	write(t, process, "hello")
	client.read(t, "hello") // it is there
	write(t, process, text)
	process.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	<-r.kept.Done()
	client.read(t, text)
	wantServed(t, served, nil)
	if err := <-drained; err != nil {
		t.Errorf("Drain() = %v, want nil", err)
	}
}

// A client that was there when the stream was given up and leaves without having read all is the last one.
func TestStream_IsLetGoWhenItsLastClientLeaves(t *testing.T) {
	r, x := newStreamedKept(t, time.Millisecond, "stdout")
	ctx, leave := context.WithCancel(t.Context())
	client, served := serve(ctx, x, "c1-stdout")
	process := r.process()
	r.started()
	write(t, process, "hello")
	client.read(t, "hello") // it is there
	write(t, process, pattern(2*bufferSize))
	process.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	<-r.kept.Done()
	eventually(t, "the stream is given up", r.outputs[0].(*stream).abandoned.Load)

	// Another client takes its place, and may read on.
	ctx2, leave2 := context.WithCancel(t.Context())
	second, served2 := serve(ctx2, x, "c1-stdout")
	wantServed(t, served, errdefs.ErrAborted)
	<-second.sent
	leave()
	leave2()
	wantServed(t, served2, context.Canceled)
	within(t, "Drain", func() {
		if err := <-drained; !errors.Is(err, errdefs.ErrDataLoss) {
			t.Errorf("Drain() = %v, want ErrDataLoss", err)
		}
	})
}
