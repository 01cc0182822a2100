// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package pidfile writes and removes files that hold the process id of a container's init; [Hook] does so when one is
// created and deleted. It never replaces or removes a file that is anything else. A removal runs in a goroutine
// that ends with it; one in a file system that does not answer is left behind.
package pidfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

// Hook is the [process.Hook] of a container with a pid file: it is written before init is reported to anybody.
type Hook struct {
	process.NoHook
	setting settings.Value
	pid     int
	removal chan error // what removes the file has its error for; nil if nothing does
}

// NewHook returns the hook for a setting that is set.
func NewHook(setting settings.Value) *Hook { return &Hook{setting: setting} }

// CheckPath checks the form of a path.
func CheckPath(setting settings.Value) error {
	path := setting.Text
	if !filepath.IsAbs(path) || path == "/" || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return setting.Refuse("the absolute path of a file, without . and ..")
	}
	return nil
}

// Prepare implements [process.Hook]. It checks the path.
func (h *Hook) Prepare(context.Context, *process.Config) error {
	if err := CheckPath(h.setting); err != nil {
		return err
	}
	err := unixfile.Within(fileTimeout, h.checkFile)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s %q: %w", h.setting.Key, h.setting.Text, err)
	}
	return err
}

func (h *Hook) checkFile() error {
	path := h.setting.Text
	dir, err := unixfile.OpenDir(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return h.setting.Refuse("in a directory that is there, without symbolic links in the path")
	} else if err != nil {
		return fmt.Errorf("%s %q: %w", h.setting.Key, path, err)
	}
	defer dir.Close() //nolint:errcheck // nothing was written
	_, err = read(dir, filepath.Base(path))
	switch {
	case errdefs.IsInvalidArgument(err):
		return h.setting.Refuse("a path at which there is nothing yet, or a pid file that was left")
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s %q: %w", h.setting.Key, path, err)
	}
	return nil
}

// Created implements [process.Hook].
func (h *Hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.pid = init.Pid()
	return h.write()
}

// write writes the file. If it is given up, what it makes later is removed.
func (h *Hook) write() error {
	path, pid := h.setting.Text, h.pid
	var givenUp atomic.Bool
	err := unixfile.Within(fileTimeout, func() error { return writeUnless(&givenUp, path, pid) })
	if errors.Is(err, context.DeadlineExceeded) {
		givenUp.Store(true) // a file that was there before is removed by Removed
		return fmt.Errorf("pid file %s: %w", path, err)
	}
	return err
}

// writeUnless makes the pid file, and removes it again if it was given up meanwhile.
func writeUnless(givenUp *atomic.Bool, path string, pid int) error {
	err := Write(path, pid)
	if givenUp.Load() {
		err = errors.Join(err, removeNow(path, is(pid)))
	}
	return err
}

// Removed implements [process.Hook].
func (h *Hook) Removed() error {
	if h.pid == 0 {
		return nil // nothing was written
	}
	if h.removal == nil {
		h.removal = make(chan error, 1)
		go func() { h.removal <- removeNow(h.setting.Text, is(h.pid)) }() // ends when the file system answers
	}
	return h.awaitRemoval()
}

// awaitRemoval waits for a removal that may be that of an earlier call: each would keep a thread.
func (h *Hook) awaitRemoval() error {
	select {
	case err := <-h.removal:
		h.removal = nil
		return refusedRemoval(h.setting.Text, err)
	case <-time.After(fileTimeout):
		return refusedRemoval(h.setting.Text, context.DeadlineExceeded)
	}
}

// fileTimeout bounds how long Create, Delete and the delete command wait for a file system that does not answer. They
// then fail, and can be tried again.
const fileTimeout = 2 * time.Second

// mode lets everybody read a pid file, as runc and containerd do.
const mode = 0o644

// digits are the most that a pid file has.
const digits = 10

// read reads a pid file: at most ten digits, and perhaps a newline. Anything else gives errdefs.ErrInvalidArgument.
func read(dir *os.Root, name string) (int, error) {
	if info, err := dir.Lstat(name); err != nil {
		return 0, err
	} else if !info.Mode().IsRegular() { // to open a device can have effects
		return 0, invalid(name)
	}
	// The owner of the directory may put a link or a pipe there at any moment.
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, errors.Join(err, invalid(name))
	}
	data, err := io.ReadAll(io.LimitReader(f, digits+2))
	if err != nil {
		return 0, err
	}
	pid, ok := parse(data)
	if !ok {
		return 0, invalid(name)
	}
	return pid, nil
}

// parse reads the beginning of a pid file, with a byte more than one can have.
func parse(data []byte) (pid int, ok bool) {
	text := strings.TrimSuffix(string(data), "\n")
	n, err := strconv.ParseUint(text, 10, 64)
	return int(n), err == nil && len(text) <= digits && 0 < n && n <= math.MaxInt32 // as a pid_t
}

func invalid(name string) error {
	return fmt.Errorf("%q: exists and is not a pid file: remove it, or choose another path: %w",
		name, errdefs.ErrInvalidArgument)
}

// Write makes a pid file, or replaces one. The file gets its name when it is complete: nobody reads half of it. It has
// no newline, like those of runc and containerd.
func Write(path string, pid int) error {
	dir, err := unixfile.OpenDir(filepath.Dir(path))
	if err == nil {
		err = errors.Join(writeIn(dir, filepath.Base(path), pid), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("pid file %s: %w", path, err)
	}
	return nil
}

func writeIn(dir *os.Root, name string, pid int) error {
	if _, err := read(dir, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return unixfile.WriteIn(dir, name, []byte(strconv.Itoa(pid)), mode)
}

// Remove removes the pid file at path if it holds pid; else it is another container's. An empty path means no file.
func Remove(path string, pid int) error {
	return removeIf(path, is(pid))
}

func is(pid int) func(there int) (bool, error) {
	return func(there int) (bool, error) { return there == pid, nil }
}

// RemoveStale removes the pid file at path if its process is dead. It is for a container whose shim died before it
// recorded the pid.
func RemoveStale(path string) error { return removeIf(path, dead) }

func removeIf(path string, ours func(pid int) (bool, error)) error {
	if path == "" {
		return nil
	}
	return refusedRemoval(path, unixfile.Within(fileTimeout, func() error { return removeNow(path, ours) }))
}

func refusedRemoval(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("remove pid file %s: %w", path, err)
}

func removeNow(path string, ours func(pid int) (bool, error)) error {
	dir, err := unixfile.OpenDir(filepath.Dir(path))
	if err == nil {
		err = errors.Join(removeIn(dir, filepath.Base(path), ours), dir.Close())
	}
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR), errdefs.IsInvalidArgument(err),
		errors.Is(err, unix.ELOOP):
		return nil // it is gone, or something else
	case errors.Is(err, unix.EAGAIN): // somebody else has a lease on it, and may take another when it ends (fcntl(2))
		log.L.WithField("path", path).Warn("pid file: it stays, since another process keeps it from being opened")
		return nil
	}
	return err
}

func removeIn(dir *os.Root, name string, ours func(pid int) (bool, error)) error {
	pid, err := read(dir, name)
	if err != nil {
		return err
	}
	if remove, err := ours(pid); err != nil || !remove {
		return err
	}
	return dir.Remove(name)
}

// dead reports whether process pid does not exist, or has exited and is not reaped yet.
func dead(pid int) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return true, nil // the last two: the id is that of a thread now
	}
	if err != nil {
		return false, os.NewSyscallError("pidfd_open", err)
	}
	defer func() { _ = unix.Close(fd) }() // only watched
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if errors.Is(err, unix.EINTR) { // which it returns only for a running process
		return false, nil
	}
	return n > 0, os.NewSyscallError("poll", err)
}
