// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/internal/testx"
)

// awaitingReaders reports whether n copiers have bytes that nobody has come to read.
func awaitingReaders(n int) func() bool {
	return func() bool { return strings.Count(goroutines(), "(*fifoOutput).awaitReader(") == n }
}

func TestFifo_EachReaderThatComesLateIsNoticed(t *testing.T) {
	r := newEnv(t, false, "stdout")
	testx.Must(t, r.run("echo", "hello").Wait())
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	testx.Eventually(t, "the copier waits for a reader", awaitingReaders(1))
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
	testx.Eventually(r.t, "no descriptor of the fifos", func() bool {
		return !slices.ContainsFunc(openFDs(), func(fd string) bool { return strings.Contains(fd, r.dir) })
	})
}

func TestFifo_LastBytesThatNobodyComesToReadAreLetGo(t *testing.T) {
	r := unreadEnv(t)
	if err := r.run("sh", "-c", "echo hello; echo oops >&2").Wait(); err != nil {
		t.Fatal(err)
	}
	testx.Eventually(t, "the copiers wait for readers", awaitingReaders(2))
	r.wantLetGo("drain stdout: the last 6 bytes are not read: nobody came within 1ms: data loss\n" +
		"drain stderr: the last 5 bytes are not read: nobody came within 1ms: data loss")
}

func TestFifo_MoreThanItHoldsThatNobodyComesToReadIsLetGo(t *testing.T) {
	r := unreadEnv(t)
	process := r.process()
	r.started()
	write(t, process, pattern(2*bufferSize)) // the fifo and the pipe are full
	testx.Eventually(t, "the copier is blocked", blocked)
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
	testx.Eventually(t, "the copier is blocked", blocked)
	process.Close()
	drained := make(chan error, 1)
	go func() { drained <- r.Drain(t.Context()) }()
	<-r.kept.Done() // what has no reader is let go
	wantRest(t, out, text)
	if err := <-drained; err != nil {
		t.Errorf("Drain() = %v, want nil", err)
	}
}
