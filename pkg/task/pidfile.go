// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"sandbox.internal/shim/pkg/pidfile"
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
	if _, err := pidfile.Read(v.Text); err != nil && !errors.Is(err, os.ErrNotExist) {
		return refuse("a path at which there is nothing yet, or a pid file that was left")
	}
	return nil
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
	return pidfile.Write(h.path, h.pid)
}

// Removed implements process.CreateHook.
func (h *pidFileHook) Removed() error { return pidfile.Remove(h.path, h.pid) }
