// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// pass lets every connection through; the peer's user is ttrpc's to check.
type pass struct{}

func (pass) Handshake(_ context.Context, c net.Conn) (net.Conn, any, error) { return c, nil, nil }

func TestAttendance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var absent atomic.Int32
		a := newAttendance(time.Minute, func() { absent.Add(1) })
		a.handshake = pass{}
		connect := func() net.Conn {
			mine, theirs := net.Pipe()
			t.Cleanup(func() { _ = theirs.Close() })
			c, _, err := a.Handshake(t.Context(), mine)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		check := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := int(absent.Load()); got != want {
				t.Errorf("%s: absent called %d times, want %d", when, got, want)
			}
		}

		time.Sleep(59 * time.Second)
		first := connect()
		time.Sleep(time.Hour)
		check("while one is connected", 0)
		second := connect()
		_ = first.Close()
		_ = first.Close() // counts once
		time.Sleep(time.Hour)
		check("while another is connected", 0)
		_ = second.Close()
		time.Sleep(59 * time.Second)
		check("just before the time is over", 0)
		time.Sleep(2 * time.Second)
		check("when the time is over", 1)

		third := connect()
		_ = third.Close()
		a.stop()
		time.Sleep(time.Hour)
		check("after stop", 1)
	})
}

func TestAttendanceRefusesWhatIsNoUnixSocket(t *testing.T) {
	a := newAttendance(time.Minute, func() {})
	defer a.stop()
	mine, theirs := net.Pipe()
	defer theirs.Close()
	if _, _, err := a.Handshake(t.Context(), mine); err == nil {
		t.Error("a pipe was let through")
	}
	if a.open != 0 {
		t.Errorf("open = %d, want 0", a.open)
	}
}

// The call that ends the shim is the first on its connection for a while, and its answer is awaited.
func TestTheCallThatEndsTheShimIsAnswered(t *testing.T) {
	for range 5 {
		clients := newAttendance(time.Minute, func() {})
		defer clients.stop()
		intercept := func(ctx context.Context, u ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, call ttrpc.Method) (any, error) {
			return call(ctx, u)
		}
		server, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(clients), ttrpc.WithUnaryServerInterceptor(clients.counting(intercept)))
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(context.Background(), l) }() // ends below
		go func() {
			defer close(ended)
			<-ending
			clients.settle(t.Context(), func() { t.Error("a call came too late") })
			_ = server.Shutdown(t.Context()) // the test's context does not end first
		}()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		client := ttrpc.NewClient(conn)
		if err := client.Call(t.Context(), "s", "End", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			t.Errorf("call: %v", err)
		}
		_ = client.Close()
		<-ended
	}
}

func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAttendance(time.Hour, func() {})
		a.handshake = pass{}
		defer a.stop()
		release := make(chan struct{})
		mine, theirs := net.Pipe()
		defer func() { _ = theirs.Close() }() // one end is enough
		conn, _, err := a.Handshake(t.Context(), mine)
		if err != nil {
			t.Fatal(err)
		}
		slow := a.counting(func(context.Context, ttrpc.Unmarshaler, *ttrpc.UnaryServerInfo, ttrpc.Method) (any, error) {
			<-release
			return nil, nil
		})
		settled := func(ctx context.Context) time.Duration {
			began := time.Now()
			a.settle(ctx, func() {})
			return time.Since(began)
		}
		go func() { _, _ = slow(t.Context(), nil, nil, nil) }()
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

// A client that stays connected neither keeps the shim nor is told that it lives.
func TestSettle_NoCallIsAnsweredAfterTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAttendance(time.Hour, func() {})
		a.handshake = pass{}
		defer a.stop()
		mine, theirs := net.Pipe()
		defer func() { _ = theirs.Close() }() // one end is enough
		conn, _, err := a.Handshake(t.Context(), mine)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // as above
		call := a.counting(func(context.Context, ttrpc.Unmarshaler, *ttrpc.UnaryServerInfo, ttrpc.Method) (any, error) {
			return "answer", nil
		})
		if answer, err := call(t.Context(), nil, nil, nil); answer != "answer" || err != nil {
			t.Errorf("call before the end = %v, %v, want an answer", answer, err)
		}

		late := make(chan struct{})
		settled := make(chan time.Duration)
		go func() {
			began := time.Now()
			a.settle(t.Context(), func() { close(late) })
			settled <- time.Since(began)
		}()
		synctest.Wait()
		connected, hangUp := context.WithCancel(t.Context())
		answered := make(chan any)
		go func() {
			answer, _ := call(connected, nil, nil, nil) // its error is for nobody
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
