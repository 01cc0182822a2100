// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pidfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/settings"
)

func writePid(path string, pid int) error {
	return in(path, func(dir *os.Root, name string) error { return write(dir, name, pid) })
}

func TestWrite_ReplacesNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pid")
	must(t, writePid(path, 6))
	must(t, writePid(path, 7))
	wantFile(t, path, "7")
	must(t, os.WriteFile(path, []byte("a letter"), 0o600))
	if err := writePid(path, 8); err == nil {
		t.Error("no error where there is something else")
	}
	wantFile(t, path, "a letter")
	if got := files(t, dir); got != "pid" {
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
		must(t, os.Rename(filepath.Join(volume, "dir"), filepath.Join(volume, "away")))
		must(t, os.Symlink(host, filepath.Join(volume, "dir")))
	}
	for name, act := range map[string]func() error{
		"before the check": func() error {
			exchange()
			err := (&hook{setting: settings.Value{Key: "k", Text: path}}).Prepare(t.Context(), nil)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Prepare = %v, want invalid argument", err)
			}
			return nil
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
			must(t, errors.Join(os.MkdirAll(host, 0o700), os.MkdirAll(filepath.Dir(path), 0o700)))
			defer func() { must(t, os.RemoveAll(volume)) }()
			must(t, errors.Join(os.WriteFile(filepath.Join(host, "pid"), []byte("7"), 0o600), writePid(path, 7)))
			must(t, act())
			wantFile(t, filepath.Join(host, "pid"), "7")
			if got := files(t, host); got != "pid" {
				t.Errorf("the directory of the host has %s", got)
			}
		})
	}
}

func TestRead_KnowsAPidFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	dir, err := os.OpenRoot(filepath.Dir(path))
	must(t, err)
	defer dir.Close()
	for text, want := range map[string]int{
		"1": 1, "4194304\n": 4194304, "1234567890": 1234567890, "0123": 123,
		"2147483647": 2147483647, "2147483648": -1, "4294967295": -1, "0": -1,
		"": -1, "\n": -1, "12345678901": -1, "1\n\n": -1, "1234567890\n\n": -1, " 1": -1, "+1": -1, "-1": -1, "0x1": -1,
		"1_0": -1, "1\n2": -1, "1 \n": -1,
	} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		pid, err := read(dir, "pid")
		if refused := errdefs.IsInvalidArgument(err); refused != (want < 0) || !refused && (pid != want || err != nil) {
			t.Errorf("read of %q = %d, %v, want %d", text, pid, err, want)
		}
	}
}

// Whoever owns the directory changes what is there all the time.
func TestRead_OfAPipeDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/file", []byte("1"), 0o600))
	must(t, unix.Mkfifo(dir+"/pipe", 0o600))
	must(t, os.Link(dir+"/file", dir+"/pid"))
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
	must(t, err)
	defer root.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 20000 {
			_, _ = read(root, "pid")
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("still reading a pipe")
	}
	close(stop)
	<-stopped
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if want == "" {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s = %q, %v, want that it is gone", path, data, err)
		}
		return
	}
	if err != nil || string(data) != want {
		t.Errorf("%s = %q, %v, want %q", path, data, err, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// files lists what is in a bundle.
func files(t *testing.T, bundle string) string {
	t.Helper()
	entries, err := os.ReadDir(bundle)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// withoutDescriptors calls f while this process cannot get another descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

func TestRemove_SaysThatItCannotTell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	must(t, writePid(path, os.Getpid()))
	var removed, prepared error
	h := &hook{setting: settings.Value{Key: "k", Text: path}}
	withoutDescriptors(t, func() {
		removed, prepared = removeFile(path, os.Getpid()), h.Prepare(t.Context(), nil)
	})
	for name, err := range map[string]error{"Remove": removed, "Prepare": prepared} {
		if !errors.Is(err, unix.EMFILE) || errdefs.IsInvalidArgument(err) {
			t.Errorf("%s without descriptors = %v, want %v", name, err, unix.EMFILE)
		}
	}
	wantFile(t, path, strconv.Itoa(os.Getpid()))
}

// The shim of another container, with the same path by mistake, may have died before it recorded a pid.
func TestRemove_WithoutAPidTakesTheFileOfADeadProcessAlone(t *testing.T) {
	child := exec.Command("true")
	must(t, child.Run())
	for pid, stays := range map[int]bool{os.Getpid(): true, child.Process.Pid: false} {
		path := filepath.Join(t.TempDir(), "pid")
		must(t, os.WriteFile(path, []byte(strconv.Itoa(pid)), 0o600))
		must(t, removeFile(path, 0))
		if _, err := os.Stat(path); (err == nil) != stays {
			t.Errorf("the file with pid %d: %v, want that it stays: %t", pid, err, stays)
		}
	}
}
