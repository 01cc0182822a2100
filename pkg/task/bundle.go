// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/event"
	"sandbox.internal/shim/pkg/hostrootfs"
	"sandbox.internal/shim/pkg/listen"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// bundleHook writes what the delete command has to know (pkg/cleanup) before anything else is made.
type bundleHook struct {
	process.NoHook
	index   *cleanup.Index
	id, dir string
	state   cleanup.State
}

// Prepare implements process.Hook.
func (h *bundleHook) Prepare(context.Context, *process.Config) error {
	if err := h.index.Add(h.id, h.dir, h.state.Root); err != nil {
		return fmt.Errorf("list it for the delete command: %w", err)
	}
	return h.state.Write(h.dir)
}

// Removed implements process.Hook.
func (h *bundleHook) Removed() error {
	return errors.Join(cleanup.RemoveState(h.dir), h.index.Remove(h.id, h.dir))
}

// stateHook adds to the state what is known when init exists and when it exits. It comes after the hook of sockets.
type stateHook struct {
	process.NoHook
	bundle  *bundleHook
	sockets *listen.Hook // nil: none
}

// Created implements process.Hook.
func (h stateHook) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	h.bundle.state.Pid = init.Pid()
	if h.sockets != nil {
		h.bundle.state.Sockets = h.sockets.Left()
	}
	h.write()
	return nil
}

// Exited implements process.Hook.
func (h stateHook) Exited(exit process.Exit) {
	h.bundle.state.Exit = &exit
	h.write()
}

// write does without the state rather than without the container.
func (h stateHook) write() {
	if err := h.bundle.state.Write(h.bundle.dir); err != nil {
		log.L.WithError(err).WithField("container", h.bundle.id).Warn("write the pid and the exit for the delete command")
	}
}

// rootfsHook mounts the root file system: an image, or an empty one for directories of the host.
type rootfsHook struct {
	process.NoHook
	image   []mount.Mount
	host    *hostrootfs.Rootfs
	suspend func() (resume func()) // the reaper, while mount helpers may run
	bundle  string
	made    string // directory that Prepare made, or ""
	mounted bool   // something, which may be the first of several mounts alone
}

// Prepare implements process.Hook.
func (h *rootfsHook) Prepare(_ context.Context, c *process.Config) error {
	mounts, err := h.host.RootMounts(c, h.image)
	if err != nil {
		return err
	}
	return h.mount(mounts)
}

func (h *rootfsHook) mount(mounts []mount.Mount) error {
	if len(mounts) == 0 {
		return nil
	}
	defer h.suspend()()
	target := filepath.Join(h.bundle, rootfsDir)
	err := os.Mkdir(target, 0o711)
	if err == nil {
		h.made = target
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	h.mounted = true
	if err := mount.All(mounts, target); err != nil {
		return fmt.Errorf("mount root file system %s: %w", describe(mounts), err)
	}
	return nil
}

// describe names mounts in an error.
func describe(mounts []mount.Mount) string {
	var all []string
	for _, m := range mounts {
		all = append(all, fmt.Sprintf("%s %q (%s)", m.Type, m.Source, strings.Join(m.Options, ",")))
	}
	return strings.Join(all, " + ")
}

// Removed implements process.Hook. What the client mounted itself stays.
func (h *rootfsHook) Removed() error {
	if h.mounted {
		if err := cleanup.UnmountRootfs(h.bundle); err != nil {
			return err
		}
	}
	if h.made == "" {
		return nil
	}
	return unixfile.Remove(h.made)
}

func eventMounts(mounts []mount.Mount) []event.Mount {
	var all []event.Mount
	for _, m := range mounts {
		all = append(all, event.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
