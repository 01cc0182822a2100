// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package unixfile provides replacement and removal of files without a race, locks that end with a context, and
// openat2(2). Its only goroutines are those of [Within].
package unixfile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	json "github.com/go-json-experiment/json/v1"
	"golang.org/x/sys/unix"
)

// Write replaces the file at path, or makes it, with mode 0600: see [WriteIn].
func Write(path string, data []byte) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // nothing was written
	return WriteIn(dir, filepath.Base(path), data, 0o600)
}

// WriteIn replaces the file name of dir, or makes it. A reader sees the old content or the new one, also after a crash
// of this process. The temporary file's name cannot be guessed: clients choose the names of verdicts.
func WriteIn(dir *os.Root, name string, data []byte, mode os.FileMode) error {
	next := ".new-" + rand.Text()
	f, err := dir.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Close()) // whatever the umask is
	if err == nil {
		err = dir.Rename(next, name)
	}
	if err != nil {
		_ = dir.Remove(next) // the first error counts
	}
	return err
}

// varRun is a link to /run on most machines.
const varRun = "/var/run"

// OpenDir opens a directory that somebody outside may name, such as one of a volume. It returns ELOOP for a link other
// than /var/run: a container could make one that leads elsewhere on the host.
func OpenDir(path string) (*os.Root, error) {
	if below, ok := strings.CutPrefix(path+"/", varRun+"/"); ok {
		if target, err := filepath.EvalSymlinks(varRun); err == nil {
			path = filepath.Join(target, below)
		}
	}
	fd, err := Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open without symbolic links", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// WriteJSON is Write with the JSON of value.
func WriteJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return Write(path, data)
}

// ReadJSON reads the JSON in the file at path. Malformed content gives no os.PathError.
func ReadJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// Remove removes the file or the empty directory at path, if there is one.
func Remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Lock takes the exclusive lock of a directory (flock(2)) until unlock or the end of the process. It polls until ctx
// ends, every 8 ms, since the delete commands of a pod's containers may all wait. A lock file could never be removed
// safely.
func Lock(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	const first, last = time.Millisecond, 8 * time.Millisecond
	for wait := first; ; wait = min(2*wait, last) {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-time.After(wait):
			continue
		case <-ctx.Done():
			err = fmt.Errorf("another process holds it: %w", ctx.Err())
		}
		break
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return func() {
		// Not by Close alone: a child that is being forked may have a copy of the descriptor.
		_ = unix.Flock(int(d.Fd()), unix.LOCK_UN) // cannot fail on a lock that is held
		_ = d.Close()                             // opened for the lock only
	}, nil
}

// Within runs f, which asks a file system that may not answer. After timeout the error is context.DeadlineExceeded,
// and f continues in a goroutine until the file system answers.
func Within(timeout time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("the file system does not answer within %v: %w", timeout, context.DeadlineExceeded)
	}
}

// openTimeout bounds Openat2: others can rename without a pause.
const openTimeout = 5 * time.Second

// Openat2 is openat2(2). It tries again after a rename or a mount elsewhere that disturbed a path with "..".
func Openat2(dir int, path string, how *unix.OpenHow) (fd int, err error) {
	for start := time.Now(); ; {
		fd, err := unix.Openat2(dir, path, how)
		again := errors.Is(err, unix.EAGAIN) && time.Since(start) < openTimeout || errors.Is(err, unix.EINTR)
		if !again {
			return fd, err
		}
	}
}
