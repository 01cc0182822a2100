// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// scriptedListener fails with each of its errors and then gives one end of a pipe.
type scriptedListener struct {
	net.Listener // nothing but Accept and Close is called
	errs         []error
	accepts      int
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	if l.accepts++; l.accepts <= len(l.errs) {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", l.errs[l.accepts-1])}
	}
	conn, _ := net.Pipe()
	return conn, nil
}

func (l *scriptedListener) Close() error { return nil }

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
		l := newSteadyListener(inner)
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
	t.Run("while it waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newSteadyListener(&scriptedListener{errs: []error{unix.ENOMEM}})
			accepted := make(chan error, 1)
			began := time.Now()
			logged(t, func() {
				go func() {
					_, err := l.Accept()
					accepted <- err
				}()
				synctest.Wait()
				for range 2 { // as a server and the daemon do
					if err := l.Close(); err != nil {
						t.Errorf("Close = %v", err)
					}
				}
				if err := <-accepted; !errors.Is(err, net.ErrClosed) {
					t.Errorf("Accept = %v, want net.ErrClosed", err)
				}
			})
			if waited := time.Since(began); waited != 0 {
				t.Errorf("Accept went on for %v after Close", waited)
			}
		})
	})
	t.Run("while it accepts", func(t *testing.T) {
		inner, err := net.Listen("unix", shortDir(t)+"/s")
		if err != nil {
			t.Fatal(err)
		}
		l := newSteadyListener(inner)
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			accepted <- err
		}()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept = %v, want net.ErrClosed", err)
		}
	})
}
