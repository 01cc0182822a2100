// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The program writes what it has read of the path into a buffer.
func TestMake_RefusesLongPaths(t *testing.T) {
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for path, want := range map[string]error{
		strings.Repeat("/a", 1000) + "made":     nil,
		strings.Repeat("/a", 2040) + "/a":       nil,
		strings.Repeat("/a", 70_000):            unix.ENAMETOOLONG,
		"made/" + strings.Repeat("/a", 100_000): unix.ENAMETOOLONG,
		strings.Repeat("n", 100_000):            unix.ENAMETOOLONG,
		"made\x00elsewhere":                     unix.EINVAL, // the kernel would make the first part
	} {
		root, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		run, err := p.Start(held(t), [3]*os.File{}, root)
		if err != nil {
			t.Fatal(err)
		}
		var request Request
		request.Make(Socket+1, path, -1)
		request.Call(unix.SYS_EXIT, 0)
		if _, err := run.Execute(t.Context(), &request); !errors.Is(err, want) {
			t.Errorf("%d bytes: Execute = %v, want %v", len(path), err, want)
		}
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	}
}

// As where somebody renames files all the time.
func TestMake_EndsIfThePathCannotBeOpened(t *testing.T) {
	p, err := New("shim-test", "test")
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
