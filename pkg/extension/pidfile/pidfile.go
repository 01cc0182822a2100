// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package pidfile writes and removes files with the process id of a container's init. A file with anything else is
// neither replaced nor removed. The container may change the directory at any moment, if it is in a volume.
package pidfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

// Extension returns the extension pid-file. The file is written before init is reported to anybody.
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
			h := &hook{setting: v}
			return &extension.Part{Hook: h, State: h, Record: func() any { return path }}, nil
		},
		CleanUp: func(_ context.Context, left extension.Left) error {
			var path string
			if left.Record == nil {
				return nil
			}
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

// Created implements [process.Hook].
func (h *hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.pid = init.Pid()
	err := in(h.setting.Text, func(dir *os.Root, name string) error { return write(dir, name, h.pid) })
	if isElsewhere(err) {
		return h.setting.Refuse("a path in a directory that is there, without symbolic links, at which there is " +
			"nothing yet, or a pid file that was left")
	}
	return err
}

// Save implements [extension.State].
func (h *hook) Save(*handover.Saver) (state any, thaw func()) { return h.pid, func() {} }

// Restore implements [extension.State].
func (h *hook) Restore(_ *handover.Loader, state json.RawMessage, _ *process.Config) error {
	return json.Unmarshal(state, &h.pid)
}

// Removed implements [process.Hook].
func (h *hook) Removed() error {
	if h.pid == 0 {
		return nil
	}
	return removeFile(h.setting.Text, h.pid)
}

// write makes or replaces a pid file, with mode 0644 and no newline, like those of runc and containerd.
func write(dir *os.Root, name string, pid int) error {
	if _, err := read(dir, name); err != nil {
		return err
	}
	return unixfile.WriteIn(dir, name, []byte(strconv.Itoa(pid)), 0o644)
}

// removeFile removes the pid file at path, unless it has another container's pid. pid is 0 if the shim died before it
// recorded the pid.
func removeFile(path string, pid int) error {
	err := in(path, func(dir *os.Root, name string) error { return remove(dir, name, pid) })
	if isElsewhere(err) {
		return nil
	}
	return err
}

func remove(dir *os.Root, name string, pid int) error {
	there, err := read(dir, name)
	if err != nil || there == 0 || pid != 0 && there != pid {
		return err
	}
	return dir.Remove(name)
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

// isElsewhere reports whether the directory is absent or behind a link, or something else is at the path.
func isElsewhere(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errdefs.IsInvalidArgument(err)
}

// digits is the longest pid's number of digits.
const digits = 10

// read reads a pid file, with or without a newline. No file gives 0, anything else errdefs.ErrInvalidArgument.
func read(dir *os.Root, name string) (int, error) {
	info, err := dir.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	var data []byte
	if err == nil && info.Mode().IsRegular() { // to open a device can have effects
		// The owner of the directory may put a link or a pipe there.
		var f *os.File
		if f, err = dir.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
			defer f.Close() //nolint:errcheck // opened for reading only
			data, err = io.ReadAll(io.LimitReader(f, digits+2))
		}
	}
	if err != nil {
		return 0, err
	}
	text := strings.TrimSuffix(string(data), "\n")
	pid, err := strconv.ParseUint(text, 10, 31) // a pid_t
	if err != nil || pid == 0 || len(text) > digits {
		return 0, fmt.Errorf("exists and is not a pid file: %w", errdefs.ErrInvalidArgument)
	}
	return int(pid), nil
}
