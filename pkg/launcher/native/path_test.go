// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
		strings.Repeat("/", 1000) + "made":     nil,
		strings.Repeat("/", 70_000):            unix.ENAMETOOLONG,
		strings.Repeat("/", 1_000_000):         unix.ENAMETOOLONG,
		"made/" + strings.Repeat("/", 100_000): unix.ENAMETOOLONG,
		strings.Repeat("n", 100_000):           unix.ENAMETOOLONG,
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

// Somebody removes a directory of the path while the program goes through it. By name `..` would lead out of the root.
func TestMake_StaysBelowTheRoot(t *testing.T) {
	p, err := New("shim-test", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 10 { // without the check most of these find the moment
		top := t.TempDir()
		below := filepath.Join(top, "1/2/root")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.Open(below)
		if err != nil {
			t.Fatal(err)
		}
		run, err := p.Start(held(t), [3]*os.File{}, root)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		removed := make(chan struct{})
		go func() { // ends with ctx
			defer close(removed)
			for ctx.Err() == nil {
				_ = unix.Rmdir(filepath.Join(below, "a")) // often it is not there
			}
		}()
		var request Request
		request.Make(Socket+1, "a"+strings.Repeat("/.", 400)+"/../../../made", -1)
		request.Call(unix.SYS_EXIT, 0)
		if _, err = run.Execute(t.Context(), &request); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Errorf("Execute = %v, want success or that the directory is gone", err)
		}
		stop()
		<-removed
		if _, err := os.Lstat(filepath.Join(top, "1/made")); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("made outside of the root: %v", err)
		}
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	}
}
