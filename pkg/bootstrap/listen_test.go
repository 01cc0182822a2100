// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idle"
	"sandbox.internal/shim/pkg/internal/testx"
)

// shortDir is a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sh")
	testx.Must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestSocketPath_IsContainerds(t *testing.T) {
	// sha256 of "/run/containerd/containerd.sock/k8s.io/c1", by sha256sum(1)
	const want = "/run/containerd/s/ccd9e484aa63698a22b33f8964a2eb3d2a5c6e843ccac78fda28f084794782cd"
	if got := socketPath(defaultSocketDir, "/run/containerd/containerd.sock", "k8s.io", "c1"); got != want {
		t.Errorf("socketPath = %q, want %q", got, want)
	}
}

// The longest socket_dir that containerd allows has room for the hash (unix(7), sun_path).
func TestSocketPath_Limit(t *testing.T) {
	if p := socketPath("/"+strings.Repeat("d", 41), "a", "n", "g"); len(p) != len(unix.RawSockaddrUnix{}.Path)-1 {
		t.Errorf("socketPath has %d bytes", len(p))
	}
}

func TestRecordSocket_MakesTheDirectory(t *testing.T) {
	dir := shortDir(t)
	r := request{Daemon: Daemon{Args: Args{Namespace: "ns", ID: "c1"}, Bundle: dir}, socketDir: dir + "/new"}
	if err := r.recordSocket(); err != nil || filepath.Dir(r.SocketPath) != r.socketDir || mode(t, r.socketDir).Perm() != 0o700 {
		t.Errorf("recordSocket with the directory %q = %q, %v, want it made with mode 0700", r.socketDir, r.SocketPath, err)
	}
	r.socketDir = "rel"
	if err := r.recordSocket(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("recordSocket with the directory %q error = %v, want ErrInvalidArgument", r.socketDir, err)
	}
}

func TestListen_LeavesWhatIsNoSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "file")
	testx.Must(t, os.WriteFile(path, []byte("text"), 0o600))
	l, err := listen(t.Context(), path)
	if l != nil || !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), path) {
		t.Errorf("listen at a file = %v, %v, want an error that names it", l, err)
	}
	if text, err := os.ReadFile(path); string(text) != "text" {
		t.Errorf("the file has %q, %v afterwards", text, err)
	}
}

func TestListener_RemovesItsSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "sock")
	first, err := listen(t.Context(), path)
	testx.Must(t, err)
	if got, want := mode(t, path), os.ModeSocket|0o600; got != want {
		t.Errorf("mode of the socket = %v, want %v", got, want)
	}
	die(t, first)
	second, err := listen(t.Context(), path) // replaces the dead one
	testx.Must(t, err)
	for _, when := range []string{"once", "again"} { // as a server and the daemon do
		if err := second.Close(); err != nil && when == "once" {
			t.Errorf("%s: Close = %v", when, err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: lstat = %v, want that it is gone", when, err)
		}
	}
}

// die closes the socket as the end of its process does.
func die(t *testing.T, l *listener) {
	t.Helper()
	l.Listener.(*net.UnixListener).SetUnlinkOnClose(false)
	testx.Must(t, l.Close())
}

func TestListen_FullBacklogIsAlive(t *testing.T) {
	path := filepath.Join(shortDir(t), "sock")
	l, err := bind(path)
	testx.Must(t, err)
	defer func() { _ = l.Close() }() // open for the test's length
	setBacklog(t, l, 0)
	for i := range 3 { // a closed connection keeps its place until it is accepted
		if err := removeUnheard(t.Context(), path); !errdefs.IsAlreadyExists(err) {
			t.Errorf("removeUnheard, attempt %d = %v, want that it is alive", i, err)
		}
	}
}

func setBacklog(t *testing.T, l *listener, n int) {
	t.Helper()
	c, err := l.Listener.(*net.UnixListener).SyscallConn()
	testx.Must(t, err)
	if failed := c.Control(func(fd uintptr) { err = unix.Listen(int(fd), n) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
}

// scriptedListener fails with each of its errors and then gives one end of a pipe.
type scriptedListener struct {
	idle.Listener // nothing but Accept and Close is called
	errs          []error
	accepts       int
	closed        atomic.Bool
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	if l.accepts++; l.accepts <= len(l.errs) {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", l.errs[l.accepts-1])}
	}
	if l.closed.Load() {
		return nil, net.ErrClosed
	}
	conn, _ := net.Pipe()
	return conn, nil
}

func (l *scriptedListener) Close() error {
	l.closed.Store(true)
	return nil
}

// logged returns what is logged while f runs.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var text bytes.Buffer
	before := log.L.Logger.Out
	log.L.Logger.SetOutput(&text)
	defer log.L.Logger.SetOutput(before)
	f()
	return text.String()
}

func TestListener_AcceptsAfterAnyErrorAndLogsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errs := []error{unix.ENOMEM, unix.ENOBUFS, unix.EMFILE, unix.ENFILE, unix.ECONNABORTED, unix.EPERM, unix.EPROTO, unix.ENOSPC, unix.EINVAL}
		inner := &scriptedListener{errs: errs}
		l := &listener{Listener: inner}
		began := time.Now()
		text := logged(t, func() {
			conn, err := l.Accept()
			if err != nil {
				t.Fatalf("Accept = %v, want a connection", err)
			}
			_ = conn.Close()
		})
		if inner.accepts != len(errs)+1 {
			t.Errorf("accepted %d times, want %d", inner.accepts, len(errs)+1)
		}
		// 1, 2, 4 … 64, 100, 100 ms: it neither spins nor makes a client wait for long.
		if took, want := time.Since(began), (127+200)*time.Millisecond; took != want {
			t.Errorf("waited %v in all, want %v", took, want)
		}
		if n := strings.Count(text, "level=error"); n != 1 || !strings.Contains(text, unix.ENOMEM.Error()) {
			t.Errorf("logged %q, want the first error alone", text)
		}
	})
}

func TestListener_EndsWhenItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{Listener: &scriptedListener{errs: []error{unix.ENOMEM}}}
		accepted := make(chan error, 1)
		began := time.Now()
		logged(t, func() {
			go func() {
				_, err := l.Accept()
				accepted <- err
			}()
			synctest.Wait()
			testx.Must(t, l.Close())
			if err := <-accepted; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept = %v, want net.ErrClosed", err)
			}
		})
		if waited := time.Since(began); waited > lastAccept {
			t.Errorf("Accept went on for %v after Close", waited)
		}
	})
}
