// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package pidfile writes and removes files that hold the process id of a container's init. A file with anything else is
// neither replaced nor removed. A container may change the directory at any moment, since the directory may be in a
// volume of the container.
package pidfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

// Extension returns the extension pid-file. A file is written before init is reported to anybody.
func Extension() extension.Extension {
	return extension.Extension{
		Name:     "pid-file",
		Settings: []settings.Setting{{Name: "pid-file", Option: "PidFile", Unsafe: true}},
		New: func(values settings.Values) (*extension.Part, error) {
			v := values.Of("pid-file")
			if !v.IsSet() {
				return nil, nil //nolint:nilnil // nothing was asked for
			}
			if !v.ByAnnotation && !strings.Contains(v.Text, "{id}") {
				return nil, v.Refuse("a path with {id} in it, since it is for all containers")
			}
			v.Text = values.Expand(v.Text)
			path := v.Text
			if !filepath.IsAbs(path) || path == "/" || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
				return nil, v.Refuse("the absolute path of a file, without . and ..")
			}
			return &extension.Part{Hook: &hook{setting: v}, Record: func() any { return path }}, nil
		},
		CleanUp: func(_ context.Context, left extension.Left) error {
			if left.Record == nil {
				return nil
			}
			var path string
			if err := json.Unmarshal(left.Record, &path); err != nil {
				return fmt.Errorf("pid file: %w", err)
			}
			return removeFile(path, left.Pid)
		},
	}
}

type hook struct {
	process.NoHook
	setting settings.Value
	pid     int // 0 until the file is written
}

// Prepare implements [process.Hook].
func (h *hook) Prepare(context.Context, *process.Config) error {
	err := in(h.setting.Text, func(dir *os.Root, name string) error { _, err := read(dir, name); return err })
	switch {
	case noDir(err):
		return h.setting.Refuse("in a directory that is there, without symbolic links in the path")
	case errdefs.IsInvalidArgument(err):
		return h.setting.Refuse("a path at which there is nothing yet, or a pid file that was left")
	}
	return err
}

// Created implements [process.Hook].
func (h *hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.pid = init.Pid()
	return in(h.setting.Text, func(dir *os.Root, name string) error { return write(dir, name, h.pid) })
}

// Removed implements [process.Hook].
func (h *hook) Removed() error {
	if h.pid == 0 {
		return nil
	}
	return removeFile(h.setting.Text, h.pid)
}

// write makes a pid file, or replaces one. The file has mode 0644 and no newline, like those of runc and containerd.
func write(dir *os.Root, name string, pid int) error {
	if _, err := read(dir, name); err != nil {
		return err
	}
	return unixfile.WriteIn(dir, name, []byte(strconv.Itoa(pid)), 0o644)
}

// removeFile removes the pid file at path, unless the file holds another pid and so is another container's. 0 stands
// for the pid of any process that is dead: the shim died before it recorded the pid.
func removeFile(path string, pid int) error {
	err := in(path, func(dir *os.Root, name string) error { return remove(dir, name, pid) })
	if noDir(err) || errdefs.IsInvalidArgument(err) {
		return nil // something else is there
	}
	return err
}

func remove(dir *os.Root, name string, pid int) error {
	there, err := read(dir, name)
	if err != nil || there == 0 || pid != 0 && there != pid {
		return err
	}
	if pid == 0 {
		if isDead, err := dead(there); err != nil || !isDead {
			return err
		}
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
	if errors.Is(err, unix.EINTR) { // a running process alone gives that
		return false, nil
	}
	return n > 0, os.NewSyscallError("poll", err)
}

// in calls f with the directory and the name of the file at path.
func in(path string, f func(dir *os.Root, name string) error) error {
	dir, err := unixfile.OpenDir(filepath.Dir(path))
	if err == nil {
		err = errors.Join(f(dir, filepath.Base(path)), dir.Close())
	}
	if err != nil {
		return fmt.Errorf("pid file %s: %w", path, err)
	}
	return nil
}

// noDir reports whether err says that the directory of a pid file is not there, or behind a link.
func noDir(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// digits are the most that a pid file has.
const digits = 10

// errOther is the error for anything that is not a pid file.
var errOther = fmt.Errorf("exists and is not a pid file: remove it, or choose another path: %w",
	errdefs.ErrInvalidArgument)

// read reads a pid file: at most ten digits, and perhaps a newline. No file gives 0.
func read(dir *os.Root, name string) (int, error) {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, errOther // to open a device can have effects
	}
	// The owner of the directory may put a link or a pipe there at any moment.
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // opened for reading only
	data, err := io.ReadAll(io.LimitReader(f, digits+2))
	if pid, ok := parse(data); ok || err != nil {
		return pid, err
	}
	return 0, errOther
}

// parse reads the beginning of a pid file, with a byte more than one can have.
func parse(data []byte) (pid int, ok bool) {
	text := strings.TrimSuffix(string(data), "\n")
	n, err := strconv.ParseUint(text, 10, 64)
	return int(n), err == nil && len(text) <= digits && 0 < n && n <= math.MaxInt32 // as a pid_t
}
