// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pidfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

type fakeInit struct{ process.Handle }

func (fakeInit) Pid() int { return 8 }

func writePid(path string, pid int) error {
	return in(path, func(dir *os.Root, name string) error { return write(dir, name, pid) })
}

func TestWrite_ReplacesNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pid")
	testx.Must(t, writePid(path, 6))
	testx.Must(t, writePid(path, 7))
	wantFile(t, path, "7")
	testx.Must(t, os.WriteFile(path, []byte("a letter"), 0o600))
	if err := writePid(path, 8); err == nil {
		t.Error("no error where there is something else")
	}
	wantFile(t, path, "a letter")
	if got := testx.Files(t, dir); got != "pid" {
		t.Errorf("in the directory there is %s", got)
	}
}

// A container exchanges a directory of its volume for a link to one of the host, at each moment.
func TestPidFile_IsNotLedElsewhere(t *testing.T) {
	top := t.TempDir()
	host, volume := filepath.Join(top, "host"), filepath.Join(top, "volume")
	path := filepath.Join(volume, "dir/pid")
	exchange := func() {
		t.Helper()
		testx.Must(t, os.Rename(filepath.Join(volume, "dir"), filepath.Join(volume, "away")))
		testx.Must(t, os.Symlink(host, filepath.Join(volume, "dir")))
	}
	for name, act := range map[string]func() error{
		"before init is there": func() error {
			exchange()
			h := &hook{setting: settings.Value{Key: "k", Text: path}}
			if err := h.Created(t.Context(), nil, fakeInit{}); !errdefs.IsInvalidArgument(err) {
				t.Errorf("Created = %v, want invalid argument", err)
			}
			return h.Removed()
		},
		"before the write": func() error {
			exchange()
			if err := writePid(path, 8); !errors.Is(err, unix.ELOOP) {
				t.Errorf("write = %v, want ELOOP", err)
			}
			return nil
		},
		"while it is written": func() error {
			return in(path, func(dir *os.Root, name string) error { exchange(); return write(dir, name, 8) })
		},
		"before the removal": func() error { exchange(); return removeFile(path, 7) },
		"while it is removed": func() error {
			return in(path, func(dir *os.Root, name string) error { exchange(); return remove(dir, name, 7) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			testx.Must(t, errors.Join(os.MkdirAll(host, 0o700), os.MkdirAll(filepath.Dir(path), 0o700)))
			defer func() { testx.Must(t, os.RemoveAll(volume)) }()
			testx.Must(t, errors.Join(os.WriteFile(filepath.Join(host, "pid"), []byte("7"), 0o600), writePid(path, 7)))
			testx.Must(t, act())
			wantFile(t, filepath.Join(host, "pid"), "7")
			if got := testx.Files(t, host); got != "pid" {
				t.Errorf("the directory of the host has %s", got)
			}
		})
	}
}

func TestRead_KnowsAPidFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	dir, err := os.OpenRoot(filepath.Dir(path))
	testx.Must(t, err)
	defer dir.Close()
	for text, want := range map[string]int{
		"1": 1, "4194304\n": 4194304, "1234567890": 1234567890, "0123": 123,
		"2147483647": 2147483647, "2147483648": -1, "4294967295": -1, "0": -1,
		"": -1, "\n": -1, "12345678901": -1, "1\n\n": -1, "1234567890\n\n": -1, " 1": -1, "+1": -1, "-1": -1, "0x1": -1,
		"1_0": -1, "1\n2": -1, "1 \n": -1,
	} {
		testx.Must(t, os.WriteFile(path, []byte(text), 0o600))
		pid, err := read(dir, "pid")
		if refused := errdefs.IsInvalidArgument(err); refused != (want < 0) || !refused && (pid != want || err != nil) {
			t.Errorf("read of %q = %d, %v, want %d", text, pid, err, want)
		}
	}
}

// Whoever owns the directory changes what is there all the time.
func TestRead_OfAPipeDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	testx.Must(t, os.WriteFile(dir+"/file", []byte("1"), 0o600))
	testx.Must(t, unix.Mkfifo(dir+"/pipe", 0o600))
	testx.Must(t, os.Link(dir+"/file", dir+"/pid"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				_ = os.Link(dir+"/"+[]string{"file", "pipe"}[n%2], dir+"/next")
				_ = os.Rename(dir+"/next", dir+"/pid")
				_ = os.Remove(dir + "/next")
			}
		}
	}()
	root, err := os.OpenRoot(dir)
	testx.Must(t, err)
	defer root.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 20000 {
			_, _ = read(root, "pid")
		}
	}()
	testx.Within(t, "reading", ended)
	close(stop)
	<-stopped
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	if got := testx.Read(t, path); got != want {
		t.Errorf("%s = %q, want %q", path, got, want)
	}
}

// The shim died before it recorded a pid: the file is that of its init.
func TestRemove_WithoutAPidTakesAPidFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	for text, stays := range map[string]bool{"7": false, "a letter": true} {
		testx.Write(t, path, text)
		testx.Must(t, removeFile(path, 0))
		if got := testx.Exists(path); got != stays {
			t.Errorf("the file with %q is there: %t, want %t", text, got, stays)
		}
	}
}
