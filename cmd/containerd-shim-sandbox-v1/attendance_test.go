// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
