// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pidfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
)

// Hook is the [process.Hook] of a container with a pid file: it is written before anybody is told of init.
type Hook struct {
	process.NoHook
	setting settings.Value
	pid     int
}

// NewHook returns the hook for a setting that is set.
func NewHook(setting settings.Value) *Hook { return &Hook{setting: setting} }

// Prepare implements [process.Hook]. It checks the path.
func (h *Hook) Prepare(context.Context, *process.Config) error {
	path := h.setting.Text
	refuse := func(allowed string) error {
		return fmt.Errorf("%s %q: must be %s: %w", h.setting.Key, path, allowed, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(path) || path == "/" || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return refuse("the absolute path of a file, without . and ..")
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return refuse("in a directory that is there")
	}
	if _, err := Read(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return refuse("a path at which there is nothing yet, or a pid file that was left")
	}
	return nil
}

// Created implements [process.Hook].
func (h *Hook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.pid = init.Pid()
	return Write(h.setting.Text, h.pid)
}

// Removed implements [process.Hook].
func (h *Hook) Removed() error {
	if h.pid == 0 {
		return nil // nothing was written
	}
	return Remove(h.setting.Text, h.pid)
}
