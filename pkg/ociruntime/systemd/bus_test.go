// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// A connection is not closed under somebody who uses it.
func TestUsers_TheLastEndsTheConnection(t *testing.T) {
	closed := 0
	u := users{last: func() { closed++ }}
	first, second := u.begin(), u.begin()
	first()
	first()
	if closed != 0 {
		t.Error("closed while it is used")
	}
	third := u.begin()
	second()
	third()
	if closed != 1 {
		t.Errorf("closed %d times, want once", closed)
	}
	u.begin()()
	if closed != 2 {
		t.Errorf("closed %d times, want once more", closed)
	}
}

// As where many pods start at the same time.
func TestConnect_WaitsForRoomInTheBacklogOfTheBus(t *testing.T) {
	address := &unix.SockaddrUnix{Name: filepath.Join(t.TempDir(), "bus")}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		testx.Must(t, err)
		t.Cleanup(func() { testx.Must(t, unix.Close(fd)) })
		return fd
	}
	bus := socket()
	testx.Must(t, unix.Bind(bus, address))
	testx.Must(t, unix.Listen(bus, 1))
	for {
		err := unix.Connect(socket(), address)
		if errors.Is(err, unix.EAGAIN) {
			break // it is full
		}
		testx.Must(t, err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+address.Name)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	absent := func(context.Context) (*dbus.Conn, error) { return nil, unix.ENOENT }
	conn, err := connect(ctx, dbus.NewSystemConnectionContext, absent)
	if conn != nil || !errors.Is(err, unix.EAGAIN) || ctx.Err() == nil {
		t.Errorf("connect = %v, %v, want that it tries again until its context ends", conn, err)
	}
	begun := time.Now()
	if _, err := connect(t.Context(), absent, absent); !errors.Is(err, unix.ENOENT) || time.Since(begun) > time.Minute {
		t.Errorf("connect to nobody = %v after %v", err, time.Since(begun))
	}
}
