// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

func TestCopy_EachStreamGoesWhereItBelongs(t *testing.T) {
	r := newEnv(t, false, "stdin", "stdout", "stderr")
	out, errs := r.client("stdout"), r.client("stderr")
	r.run("sh", "-c", "cat; echo to stderr >&2")
	in := r.client("stdin")
	write(t, in, "to stdout")
	in.Close()
	testx.Must(t, r.CloseStdin())
	wantRest(t, out, "to stdout")
	wantRest(t, errs, "to stderr\n")
}

func TestCopy_TenMegabytesArriveUnchanged(t *testing.T) {
	const size = 10 << 20
	r := newEnv(t, false, "stdin", "stdout", "stderr")
	out, errs := r.client("stdout"), r.client("stderr")
	cmd := r.run("tee", "/dev/stderr")
	in := r.client("stdin")

	type result struct {
		name string
		n    int64
		sum  [sha256.Size]byte
		err  error
	}
	results := make(chan result, 3)
	go func() {
		defer in.Close()
		h := sha256.New()
		n, err := io.Copy(io.MultiWriter(in, h), io.LimitReader(rand.Reader, size))
		results <- result{"stdin", n, [sha256.Size]byte(h.Sum(nil)), err}
	}()
	for name, f := range map[string]*os.File{"stdout": out, "stderr": errs} {
		go func() {
			h := sha256.New()
			n, err := io.Copy(h, f)
			results <- result{name, n, [sha256.Size]byte(h.Sum(nil)), err}
		}()
	}
	first := <-results
	if first.name != "stdin" || first.err != nil {
		t.Fatalf("first to end: %s with %v, want stdin", first.name, first.err)
	}
	testx.Must(t, r.CloseStdin())
	for range 2 {
		if got := <-results; got.err != nil || got.n != size || got.sum != first.sum {
			t.Errorf("%s: %d bytes, error %v, same sum: %t; want %d bytes", got.name, got.n, got.err, got.sum == first.sum, size)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFifo_OutputWaitsForAReaderThatGoesAwayAndComesBack(t *testing.T) {
	r := newEnv(t, false, "stdout")
	process := r.process()
	r.started()
	text := pattern(200_000) // more than both pipes hold
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(process, text)
		process.Close()
		written <- err
	}()

	first := r.client("stdout")
	wantRead(t, first, text[:10_000])
	first.Close()
	second := r.client("stdout")
	wantRead(t, second, text[10_000:20_000])
	second.Close()
	wantRest(t, r.client("stdout"), text[20_000:])
	if err := <-written; err != nil {
		t.Errorf("write of the process: %v", err)
	}
}

func TestCopy_BlockedReaderBlocksOnlyItsOwnStream(t *testing.T) {
	r := newEnv(t, false, "stdout", "stderr")
	errs := r.client("stderr")
	r.run("sh", "-c", "head -c 60000 /dev/zero; head -c 60000 /dev/zero; echo ready >&2; cat /dev/zero")
	wantRead(t, errs, "ready\n")
}

func TestCopy_ClientSeesTheEndWithoutClose(t *testing.T) {
	r := newEnv(t, false, "stdout", "stderr")
	out, errs := r.client("stdout"), r.client("stderr")
	// The process closes one stream and lives on.
	r.run("sh", "-c", "echo bye; exec >&-; exec sleep 1000")
	wantRest(t, out, "bye\n")
	testx.Must(t, errs.SetReadDeadline(unixPast))
	if n, err := errs.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read of the other stream: %d, %v, want none and no end", n, err)
	}
}

func TestCopy_SinkThatRefusesDoesNotStopTheProcess(t *testing.T) {
	checkLeaks(t)
	r := &env{t, mustOpen(t, Config{Stdout: "/dev/full"}), ""}
	cmd := r.run("head", "-c", "1000000", "/dev/zero")
	if err := cmd.Wait(); err != nil {
		t.Errorf("process: %v, want success", err)
	}
	wantDrainError(t, r.Streams, "drain stdout: 1000000 bytes could not be written: data loss")
}

func TestChild_EndsAreBlockingAndClosedOnExec(t *testing.T) {
	before := openFDs()
	r := newEnv(t, false, "stdin", "stdout")
	stdin, stdout, stderr := r.Child()
	for name, f := range map[string]*os.File{"stdin": stdin, "stdout": stdout, "stderr": stderr} {
		conn, err := f.SyscallConn()
		testx.Must(t, err)
		err = conn.Control(func(fd uintptr) {
			status, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
			if err != nil || status&unix.O_NONBLOCK != 0 {
				t.Errorf("%s: status flags %#x, %v, want no O_NONBLOCK", name, status, err)
			}
		})
		testx.Must(t, err)
	}
	for _, fd := range openFDs() {
		var n int
		var target string
		if _, err := fmt.Sscan(fd, &n, &target); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(before, fd) {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %s: flags %#x, %v, want FD_CLOEXEC", fd, flags, err)
		}
	}
}
