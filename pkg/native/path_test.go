// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// As where somebody renames files all the time.
func TestMake_EndsIfThePathCannotBeOpened(t *testing.T) {
	p, err := New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	root, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	run, err := p.Start(held(t), [3]*os.File{}, root)
	if err != nil {
		t.Fatal(err)
	}
	var request Request
	filtered(unix.SYS_OPENAT2, unix.SECCOMP_RET_ERRNO|uint32(unix.EAGAIN))(&request)
	request.Make(Socket+1, "directory", -1)
	if _, err := run.Execute(t.Context(), &request); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("Execute = %v, want %v", err, unix.EAGAIN)
	}
}
