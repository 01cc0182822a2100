// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// checkPidFile refuses what cannot be a pid file. An empty one is none.
func checkPidFile(v settings.Value) error {
	refuse := func(allowed string) error {
		return fmt.Errorf("%s %q: must be %s: %w", v.Key, v.Text, allowed, errdefs.ErrInvalidArgument)
	}
	if !v.IsSet() {
		return nil
	}
	if !filepath.IsAbs(v.Text) || v.Text == "/" || filepath.Clean(v.Text) != v.Text || hasNUL(v.Text) {
		return refuse("the absolute path of a file, without . and ..")
	}
	if info, err := os.Stat(filepath.Dir(v.Text)); err != nil || !info.IsDir() {
		return refuse("in a directory that is there")
	}
	if _, err := readPidFile(v.Text); err != nil && !errors.Is(err, os.ErrNotExist) {
		return refuse("a path at which there is nothing yet, or a pid file that was left")
	}
	return nil
}

var pidForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9]{1,10}\n?$`) })

// readPidFile refuses what is no pid file, so that nothing else is ever
// replaced or removed.
func readPidFile(path string) (int, error) {
	if info, err := os.Lstat(path); err != nil {
		return 0, err
	} else if !info.Mode().IsRegular() { // to open a device can have effects
		return 0, fmt.Errorf("%q: no pid file: %w", path, errdefs.ErrInvalidArgument)
	}
	// Who owns the directory may put a link or a pipe there at any moment.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	const most = 16
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, errors.Join(err, fmt.Errorf("%q: no pid file: %w", path, errdefs.ErrInvalidArgument))
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return 0, err
	}
	if !pidForm().Match(data) {
		return 0, fmt.Errorf("%q: no pid file: %w", path, errdefs.ErrInvalidArgument)
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// writePidFile makes the file whole, so that nobody reads half of it. It has no
// line end, like those of runc and of containerd.
func writePidFile(path string, pid int) error {
	if err := makePidFile(path, pid); err != nil {
		return fmt.Errorf("pid file: %w", err)
	}
	return nil
}

// makePidFile gives the file its name last: a shim that is killed before leaves
// nothing.
func makePidFile(path string, pid int) (err error) {
	const readable = 0o644
	f, err := os.OpenFile(filepath.Dir(path), os.O_WRONLY|unix.O_TMPFILE, readable)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return renamePidFile(path, pid)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(strconv.Itoa(pid)); err != nil {
		return err
	}
	if err := f.Chmod(readable); err != nil { // whatever the umask is
		return err
	}
	link := func() error {
		err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		return os.NewSyscallError("linkat "+path, err)
	}
	err = link()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if _, err := readPidFile(path); err != nil {
		return err
	}
	if err := remove(path); err != nil {
		return err
	}
	return link()
}

// renamePidFile is for file systems that have no files without a name, as NFS.
func renamePidFile(path string, pid int) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	_, err = temporary.WriteString(strconv.Itoa(pid))
	const readable = 0o644
	if err = errors.Join(err, temporary.Chmod(readable), temporary.Close()); err == nil {
		if _, err = readPidFile(path); err == nil || errors.Is(err, os.ErrNotExist) {
			err = os.Rename(temporary.Name(), path)
		}
	}
	if err != nil {
		_ = os.Remove(temporary.Name()) // the error that matters is the other
	}
	return err
}

// removePidFile leaves a file that is another container's by now.
func removePidFile(path string, pid int) error {
	if path == "" {
		return nil
	}
	if there, err := readPidFile(path); err != nil || there != pid {
		return nil //nolint:nilerr // it is gone, or not ours
	}
	return remove(path)
}

// removeForsaken is removePidFile for a container whose shim died before it
// recorded a pid: the file is its own, or was left by another, when there is no
// such process any more.
func removeForsaken(path string) error {
	if path == "" {
		return nil
	}
	pid, err := readPidFile(path)
	if err != nil || !dead(pid) {
		return nil //nolint:nilerr // it is gone, or not ours
	}
	return removePidFile(path, pid)
}

// dead tells whether there is no process pid, or one that is not waited for yet.
func dead(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer func() { _ = unix.Close(fd) }() // only watched
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// pidFileHook writes init's pid before anybody is told of it.
type pidFileHook struct {
	path string
	pid  int // guarded by the turn of init
}

// Prepare implements process.CreateHook.
func (h *pidFileHook) Prepare(context.Context, *process.Config) error { return nil }

// Created implements process.CreateHook.
func (h *pidFileHook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.pid = init.Pid()
	return writePidFile(h.path, h.pid)
}

// Removed implements process.CreateHook.
func (h *pidFileHook) Removed() error { return removePidFile(h.path, h.pid) }
