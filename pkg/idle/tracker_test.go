// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"sandbox.internal/shim/pkg/internal/testx"
)

// newTracker has no functions left out of c.
func newTracker(c Config) *Tracker {
	for _, f := range []*func(){&c.Ends, &c.NoClient, &c.Quiet} {
		if *f == nil {
			*f = func() {}
		}
	}
	return NewTracker(c)
}

// connect lets a connection through without a look at the peer, which is ttrpc's.
func connect(t *testing.T, tr *Tracker) net.Conn {
	t.Helper()
	tr.handshake = pass{}
	mine, theirs := net.Pipe()
	t.Cleanup(func() { _ = theirs.Close() }) // one end is enough
	conn, _, err := tr.Handshake(t.Context(), tr.accepted(mine))
	testx.Must(t, err)
	return conn
}

var aCall = &ttrpc.UnaryServerInfo{FullMethod: "/containerd.task.v3.Task/Exec"}

// pass lets every connection through; the peer's user is ttrpc's to check.
type pass struct{}

func (pass) Handshake(_ context.Context, c net.Conn) (net.Conn, any, error) { return c, nil, nil }

func TestTracker_NoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var absent atomic.Int32
		tr := newTracker(Config{NoClient: func() { absent.Add(1) }})
		check := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := int(absent.Load()); got != want {
				t.Errorf("%s: absent called %d times, want %d", when, got, want)
			}
		}

		time.Sleep(noClientTimeout - time.Second)
		first := connect(t, tr)
		time.Sleep(time.Hour)
		check("while one is connected", 0)
		second := connect(t, tr)
		_ = first.Close()
		_ = first.Close() // counts once
		time.Sleep(time.Hour)
		check("while another is connected", 0)
		_ = second.Close()
		time.Sleep(noClientTimeout - time.Second)
		check("just before the time is over", 0)
		time.Sleep(2 * time.Second)
		check("when the time is over", 1)

		third := connect(t, tr)
		_ = third.Close()
		tr.Stop()
		time.Sleep(time.Hour)
		check("after stop", 1)
	})
}

func TestHandshake_RefusesWhatIsNoUnixSocket(t *testing.T) {
	tr := newTracker(Config{})
	defer tr.Stop()
	mine, theirs := net.Pipe()
	defer theirs.Close()
	if _, _, err := tr.Handshake(t.Context(), tr.accepted(mine)); err == nil {
		t.Error("a pipe was let through")
	}
	if _, _, err := tr.Handshake(t.Context(), mine); err == nil {
		t.Error("a connection that is not tracked was let through")
	}
}

// The call that ends the shim is the first on its connection for a while, and its answer is awaited.
func TestDrain_TheCallThatEndsTheShimIsAnswered(t *testing.T) {
	for range 5 {
		tr := newTracker(Config{})
		defer tr.Stop()
		intercept := func(ctx context.Context, u ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, call ttrpc.Method) (any, error) {
			return call(ctx, u)
		}
		server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(tr), ttrpc.WithUnaryServerInterceptor(tr.Intercept(intercept)))
		testx.Must(t, err)
		ending, ended := make(chan struct{}), make(chan struct{})
		path := filepath.Join(t.TempDir(), "s")
		server.RegisterService("s", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
			"End": func(_ context.Context, unmarshal func(any) error) (any, error) {
				close(ending)
				// A server that shuts down now closes its listener first, and this call is not answered any more.
				for range 50 {
					if conn, err := net.Dial("unix", path); err == nil {
						_ = conn.Close()
					}
				}
				return &emptypb.Empty{}, unmarshal(&emptypb.Empty{})
			},
		}})
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		testx.Must(t, err)
		go func() { _ = server.Serve(context.Background(), tr.Listen(l)) }() // ends below
		go func() {
			defer close(ended)
			<-ending
			tr.Drain(t.Context(), func() { t.Error("a call came too late") })
			_ = server.Shutdown(t.Context()) // the test's context does not end first
		}()
		conn, err := net.Dial("unix", path)
		testx.Must(t, err)
		client := ttrpc.NewClient(conn)
		if err := client.Call(t.Context(), "s", "End", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			t.Errorf("call: %v", err)
		}
		_ = client.Close()
		<-ended
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(Config{})
		defer tr.Stop()
		release := make(chan struct{})
		conn := connect(t, tr)
		slow := tr.Intercept(func(context.Context, ttrpc.Unmarshaler, *ttrpc.UnaryServerInfo, ttrpc.Method) (any, error) {
			<-release
			return nil, nil
		})
		settled := func(ctx context.Context) time.Duration {
			began := time.Now()
			tr.Drain(ctx, func() {})
			return time.Since(began)
		}
		go func() { _, _ = slow(t.Context(), nil, aCall, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if took := settled(ctx); took != 3*time.Second {
			t.Errorf("with a call that does not end: %v, want the 3 s of the context", took)
		}
		go func() { time.Sleep(time.Second); close(release) }()
		go func() { time.Sleep(time.Second + time.Millisecond); _ = conn.Close() }()
		if took := settled(t.Context()); took != time.Second+time.Millisecond {
			t.Errorf("with a client that hangs up after its answer: %v, want 1.001 s", took)
		}
		if took := settled(t.Context()); took != 0 {
			t.Errorf("with nobody: %v, want nothing", took)
		}
	})
}

// A client closes its connection once Shutdown is answered, whatever else it waits for. What Ends does is done by then.
func TestIntercept_ShutdownThatEndsTheShimIsAnsweredLast(t *testing.T) {
	for _, tt := range []struct {
		name  string
		call  string
		ends  bool
		other time.Duration // until the other call is answered
		want  time.Duration
	}{
		{"another call under way", "Shutdown", true, 20 * time.Millisecond, 20 * time.Millisecond},
		{"another that hangs", "Shutdown", true, time.Hour, hangUpTimeout},
		{"other containers live on", "Shutdown", false, time.Hour, 0},
		{"of a pod", "ShutdownSandbox", true, 20 * time.Millisecond, 20 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				if tt.ends {
					close(done)
				}
				told := time.Duration(-1)
				began := time.Now()
				tr := newTracker(Config{Done: done, Ends: func() { told = time.Since(began) }})
				defer tr.Stop()
				var other sync.WaitGroup
				defer other.Wait()
				call := tr.Intercept(func(
					_ context.Context, _ ttrpc.Unmarshaler, i *ttrpc.UnaryServerInfo, _ ttrpc.Method,
				) (any, error) {
					if i == aCall {
						time.Sleep(tt.other)
					}
					return nil, nil
				})
				other.Go(func() { _, _ = call(t.Context(), nil, aCall, nil) })
				synctest.Wait()
				if _, err := call(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/s/" + tt.call}, nil); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != tt.want {
					t.Errorf("%s took %v, want %v", tt.call, took, tt.want)
				}
				wantTold := tt.want
				if !tt.ends {
					wantTold = -1
				}
				if told != wantTold {
					t.Errorf("Ends was called after %v, want %v (-1ns: not at all)", told, wantTold)
				}
			})
		})
	}
}

// A client that stays connected neither keeps the shim nor is told that it lives.
func TestDrain_NoCallIsAnsweredAfterTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(Config{})
		defer tr.Stop()
		conn := connect(t, tr)
		defer func() { _ = conn.Close() }() // as above
		call := tr.Intercept(func(context.Context, ttrpc.Unmarshaler, *ttrpc.UnaryServerInfo, ttrpc.Method) (any, error) {
			return "answer", nil
		})
		if answer, err := call(t.Context(), nil, aCall, nil); answer != "answer" || err != nil {
			t.Errorf("call before the end = %v, %v, want an answer", answer, err)
		}

		late := make(chan struct{})
		settled := make(chan time.Duration)
		go func() {
			began := time.Now()
			tr.Drain(t.Context(), func() { close(late) })
			settled <- time.Since(began)
		}()
		synctest.Wait()
		connected, hangUp := context.WithCancel(t.Context())
		answered := make(chan any)
		go func() {
			answer, _ := call(connected, nil, aCall, nil) // its error is for nobody
			answered <- answer
		}()
		<-late
		if took := <-settled; took != hangUpTimeout {
			t.Errorf("with a client that stays: %v, want %v", took, hangUpTimeout)
		}
		synctest.Wait()
		select {
		case answer := <-answered:
			t.Errorf("a call that came too late was answered: %v", answer)
		default:
		}
		hangUp()
		if answer := <-answered; answer != nil {
			t.Errorf("answer when the connection ended = %v, want none", answer)
		}
	})
}

func TestConn_WhatThePeerSentLastIsReadAfterAWrite(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	testx.Must(t, err)
	defer l.Close()
	peer, err := net.Dial("unix", l.Addr().String())
	testx.Must(t, err)
	conn, err := l.Accept()
	testx.Must(t, err)
	tr := newTracker(Config{})
	defer tr.Stop()
	c := tr.accepted(conn)
	defer c.Close()
	if _, err := peer.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	testx.Must(t, peer.Close())
	if n, err := c.Write([]byte("answer")); n != len("answer") || err != nil {
		t.Errorf("Write = %d, %v, want all of it and no error", n, err)
	}
	if text, err := io.ReadAll(c); string(text) != "last words" || err != nil {
		t.Errorf("read %q, %v, want the last words", text, err)
	}
}

func TestTracker_QuietOnceAfterTheLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		rested := make(chan time.Duration, 8)
		var used []time.Duration
		tr := newTracker(Config{
			Quiet: func() { rested <- time.Since(begin) }, Used: func() { used = append(used, time.Since(begin)) },
		})
		defer tr.Stop()
		call := tr.Intercept(func(context.Context, ttrpc.Unmarshaler, *ttrpc.UnaryServerInfo, ttrpc.Method) (any, error) {
			time.Sleep(time.Second)
			return "answer", nil
		})
		// Three calls with a gap that is shorter than the delay, and a long time after that; then the same again.
		var want []time.Duration
		for _, delay := range []time.Duration{firstQuiet, laterQuiet} {
			for range 3 {
				time.Sleep(delay / 2)
				if got, err := call(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/containerd.task.v3.Task/Exec"}, nil); got != "answer" || err != nil {
					t.Errorf("call = %v, %v, want the answer", got, err)
				}
			}
			want = append(want, time.Since(begin)+delay)
			for range 1000 {
				_, _ = call(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/containerd.task.v3.Task/Stats"}, nil) // a poll
			}
			time.Sleep(time.Hour)
		}
		synctest.Wait()
		close(rested)
		var rests []time.Duration
		for after := range rested {
			rests = append(rests, after)
		}
		if diff := cmp.Diff(want, rests); diff != "" {
			t.Errorf("rests after (-want +got):\n%s", diff)
		}
		if len(used) != 1 || used[0] < time.Hour { // by the first call after the first rest that is no poll
			t.Errorf("used after %v, want once, after an hour", used)
		}
	})
}

// brokenConn transfers one byte with each of these errors, and then all.
type brokenConn struct {
	net.Conn
	errs []error
}

func (c *brokenConn) transfer(b []byte) (int, error) {
	if len(c.errs) == 0 {
		return len(b), nil
	}
	err := &net.OpError{Op: "transfer", Err: os.NewSyscallError("transfer", c.errs[0])}
	c.errs = c.errs[1:]
	return 1, err // a part of it was done
}

func (c *brokenConn) Read(b []byte) (int, error)  { return c.transfer(b) }
func (c *brokenConn) Write(b []byte) (int, error) { return c.transfer(b) }

func TestConn_WaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTracker(Config{}).accepted(&brokenConn{errs: []error{unix.ENOMEM, unix.ENOBUFS, unix.ENOMEM}})
		if n, err := c.Write(make([]byte, 10)); n != 10 || err != nil {
			t.Errorf("Write = %d, %v, want all and no error", n, err)
		}
		c = newTracker(Config{}).accepted(&brokenConn{errs: []error{unix.ENOBUFS}})
		if n, err := c.Read(make([]byte, 10)); n != 10 || err != nil {
			t.Errorf("Read = %d, %v, want all and no error", n, err)
		}
		var always []error
		for range 100 {
			always = append(always, unix.ENOMEM)
		}
		c = newTracker(Config{}).accepted(&brokenConn{errs: always})
		if _, err := c.Write(make([]byte, 1000)); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("Write without memory for ever = %v, want %v", err, unix.ENOMEM)
		}
	})
}

// ttrpc closes a connection by these errors alone.
func TestConn_EndsWithAnErrorOfRead(t *testing.T) {
	c := newTracker(Config{}).accepted(&brokenConn{errs: []error{unix.EIO}})
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, unix.EIO) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Read = %v, want %v and %v", err, unix.EIO, io.ErrUnexpectedEOF)
	}
	c = newTracker(Config{}).accepted(&brokenConn{errs: []error{unix.ECONNRESET}})
	if _, err := c.Read(make([]byte, 10)); errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Read = %v, want the error alone", err)
	}
}

// CVE-2020-15257: a process of another user reaches the socket of the shim, as if its mode let it.
func TestHandshake_RefusesAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, to become another user")
	}
	dir, err := os.MkdirTemp("", "s") // a socket's path is limited to 107 bytes
	testx.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // nothing depends on it
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	testx.Must(t, err)
	defer l.Close()
	for _, name := range []string{dir, path} {
		if err := os.Chmod(name, 0o777); err != nil { //nolint:gosec // the modes are not what is tested
			t.Fatal(err)
		}
	}
	tr := newTracker(Config{})
	defer tr.Stop()
	for _, uid := range []int{0, 65534} {
		connected := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // which ends with the goroutine: its user is another
			connected <- connectAs(uid, path)
		}()
		conn, err := l.Accept()
		testx.Must(t, err)
		_, _, err = tr.Handshake(t.Context(), tr.accepted(conn))
		if want := uid == os.Getuid(); (err == nil) != want {
			t.Errorf("handshake with user %d = %v, want success: %t", uid, err, want)
		}
		_ = conn.Close() // refused ones are closed
		testx.Must(t, <-connected)
	}
}

// connectAs connects with the user of this thread alone, which unix.Setresuid would give to all.
func connectAs(uid int, path string) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), ^uintptr(0)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("connect", unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
}
