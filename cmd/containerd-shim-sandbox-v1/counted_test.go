// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"path/filepath"
	"testing"
)

func TestWhatAPeerSentBeforeItWentIsReadAfterAWrite(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{Conn: conn, gone: func() {}}
	defer c.Close()
	if _, err := peer.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write([]byte("answer")); n != len("answer") || err != nil {
		t.Errorf("Write = %d, %v, want all of it and no error", n, err)
	}
	if text, err := io.ReadAll(c); string(text) != "last words" || err != nil {
		t.Errorf("read %q, %v, want the last words", text, err)
	}
}
