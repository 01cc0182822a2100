// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

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
		c := &trackedConn{Conn: &brokenConn{errs: []error{unix.ENOMEM, unix.ENOBUFS, unix.ENOMEM}}}
		if n, err := c.Write(make([]byte, 10)); n != 10 || err != nil {
			t.Errorf("Write = %d, %v, want all and no error", n, err)
		}
		c = &trackedConn{Conn: &brokenConn{errs: []error{unix.ENOBUFS}}}
		if n, err := c.Read(make([]byte, 10)); n != 10 || err != nil {
			t.Errorf("Read = %d, %v, want all and no error", n, err)
		}
		var always []error
		for range 100 {
			always = append(always, unix.ENOMEM)
		}
		c = &trackedConn{Conn: &brokenConn{errs: always}}
		if _, err := c.Write(make([]byte, 1000)); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("Write without memory for ever = %v, want %v", err, unix.ENOMEM)
		}
	})
}

// ttrpc closes a connection by these errors alone.
func TestConn_EndsWithAnErrorOfRead(t *testing.T) {
	c := &trackedConn{Conn: &brokenConn{errs: []error{unix.EIO}}}
	if _, err := c.Read(make([]byte, 10)); !errors.Is(err, unix.EIO) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Read = %v, want %v and %v", err, unix.EIO, io.ErrUnexpectedEOF)
	}
	c = &trackedConn{Conn: &brokenConn{errs: []error{unix.ECONNRESET}}}
	if _, err := c.Read(make([]byte, 10)); errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Read = %v, want the error alone", err)
	}
}
