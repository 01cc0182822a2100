// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pidfile

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
	"sandbox.internal/shim/pkg/unixfile/hungfs"
)

func TestWrite_ReplacesNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pid")
	must(t, Write(path, 6))
	must(t, Write(path, 7))
	wantFile(t, path, "7")
	must(t, os.WriteFile(path, []byte("a letter"), 0o600))
	if err := Write(path, 8); err == nil {
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
			err := NewHook(settings.Value{Key: "k", Text: path}).Prepare(t.Context(), nil)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("Prepare = %v, want invalid argument", err)
			}
			return nil
		},
		"before the write": func() error {
			exchange()
			if err := Write(path, 8); !errors.Is(err, unix.ELOOP) {
				t.Errorf("Write = %v, want ELOOP", err)
			}
			return nil
		},
		"while it is written": func() error {
			dir, err := unixfile.OpenDir(filepath.Dir(path))
			must(t, err)
			defer dir.Close()
			exchange()
			return writeIn(dir, "pid", 8)
		},
		"before the removal": func() error { exchange(); return Remove(path, 7) },
		"while it is removed": func() error {
			return removeIf(path, func(int) (bool, error) { exchange(); return true, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, errors.Join(os.MkdirAll(host, 0o700), os.MkdirAll(filepath.Dir(path), 0o700)))
			defer func() { must(t, os.RemoveAll(volume)) }()
			must(t, errors.Join(os.WriteFile(filepath.Join(host, "pid"), []byte("7"), 0o600), Write(path, 7)))
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
	must(t, Write(path, os.Getpid()))
	var removed, stale, looked, prepared error
	hook := NewHook(settings.Value{Key: "k", Text: path})
	withoutDescriptors(t, func() {
		removed, stale, prepared = Remove(path, os.Getpid()), RemoveStale(path), hook.Prepare(t.Context(), nil)
		_, looked = dead(os.Getpid())
	})
	for name, err := range map[string]error{"Remove": removed, "RemoveStale": stale, "dead": looked, "Prepare": prepared} {
		if !errors.Is(err, unix.EMFILE) || errdefs.IsInvalidArgument(err) {
			t.Errorf("%s without descriptors = %v, want %v", name, err, unix.EMFILE)
		}
	}
	wantFile(t, path, strconv.Itoa(os.Getpid()))
}

// Delete has the lock of its container meanwhile, and tries again.
func TestRemove_DoesNotWaitForAFileSystemThatHangs(t *testing.T) {
	dir := t.TempDir()
	hungfs.Mount(t, dir)
	if err := Remove(filepath.Join(dir, "pid"), 7); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Remove = %v, want %v", err, context.DeadlineExceeded)
	}
}

// Create is abandoned, and the file, should it still come, with it.
func TestHook_DoesNotWaitForAFileSystemThatHangs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	must(t, os.Mkdir(dir, 0o700))
	h := NewHook(settings.Value{Key: "pid-file", Text: filepath.Join(dir, "pid")})
	h.pid = os.Getpid()
	hungfs.Mount(t, dir)
	for name, err := range map[string]error{"Prepare": h.Prepare(t.Context(), nil), "Created": h.write()} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), h.setting.Text) {
			t.Errorf("%s = %v, want %v and the path", name, err, context.DeadlineExceeded)
		}
	}
}

func TestWrite_LeavesNothingThatWasGivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	var givenUp atomic.Bool
	must(t, writeUnless(&givenUp, path, os.Getpid()))
	wantFile(t, path, strconv.Itoa(os.Getpid()))
	givenUp.Store(true)
	must(t, writeUnless(&givenUp, path, os.Getpid()))
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}

// A client may try a Delete again for as long as the file system hangs, and each try would keep a thread.
func TestHook_HasOneRemovalAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	must(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "pid")
	h := NewHook(settings.Value{Key: "pid-file", Text: path})
	h.pid = os.Getpid()
	hungfs.Mount(t, dir)
	for range 2 {
		if err := h.Removed(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Removed = %v, want %v", err, context.DeadlineExceeded)
		}
	}
	first := h.removal
	must(t, unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE)) // what waits gets an error
	if err := h.Removed(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Removed = %v, want the error of the first try", err)
	}
	if first == nil || h.removal != nil {
		t.Error("there is more than the first try")
	}
	must(t, h.Removed())
}

// Somebody who may write to the directory must not keep the container from being deleted.
func TestRemove_LeavesWhatSomebodyKeepsClosed(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	must(t, os.Symlink("loop", loop))
	must(t, Remove(filepath.Join(loop, "pid"), 7))

	leased := filepath.Join(dir, "leased")
	f, err := os.OpenFile(leased, os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	_, err = f.WriteString("7")
	must(t, err)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("lease: %v", err)
	}
	signal.Ignore(unix.SIGIO) // by which the kernel tells the owner of the lease
	t.Cleanup(func() { signal.Reset(unix.SIGIO) })
	must(t, Remove(leased, 7))
	must(t, f.Close())
	must(t, Remove(leased, 7))
	if _, err := os.Stat(leased); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file without its lease: %v, want it removed", err)
	}
}

// The number of a dead process may be that of a thread now.
func TestRemoveStale_OfAThreadsNumber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	thread, end := make(chan int), make(chan struct{})
	go func() { // ends with the test
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		<-end
	}()
	defer close(end)
	tid := <-thread
	if tid == os.Getpid() {
		t.Skip("SKIPPED: the goroutine is on the first thread")
	}
	must(t, Write(path, tid))
	must(t, RemoveStale(path))
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v, want it removed", err)
	}
}
