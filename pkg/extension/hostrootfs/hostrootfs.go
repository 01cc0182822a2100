// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package hostrootfs shows files of the host in a container's root file system, for programs without an image. All are
// bind mounts of the container's configuration, which end with its mount namespace.
package hostrootfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cleanup"
	"sandbox.internal/shim/pkg/extension"
	"sandbox.internal/shim/pkg/handover"
	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

// Rootfs is what one container shows of the host. The zero value shows nothing.
type Rootfs struct {
	process.NoHook
	setting settings.Value
	entries []entry // a parent before what lies in it
	hidden  hidden
	bundle  string
	mounted bool          // a root file system in memory
	binds   []specs.Mount // that the runtime mounts and Created checks
}

// Extension returns the extension host-rootfs.
func Extension() extension.Extension {
	return extension.Extension{
		Name: "host-rootfs",
		Settings: []settings.Setting{
			{Name: "host-rootfs", Option: "HostRootfs", Unsafe: true, SafeValue: off},
			{Name: "host-rootfs.mask", Option: "HostRootfsMask", Unsafe: true},
		},
		New: func(values settings.Values) (*extension.Part, error) {
			h, err := parse(values)
			if err != nil || len(h.entries) == 0 {
				return nil, err
			}
			// criu does not support mounts in others of the host, and no checkpoint has the root file system in memory.
			subject := fmt.Sprintf("%s %q: a container with directories of the host", h.setting.Key, h.setting.Text)
			return &extension.Part{Hook: &h, State: &h, NoCheckpoint: subject, Inspect: h.inspect}, nil
		},
		CleanUp: func(_ context.Context, left extension.Left) error { return removeSkeletons(left.Bundle) },
	}
}

func (h *Rootfs) inspect(c *inspect.ContainerInfo) {
	for _, e := range h.entries {
		c.HostRootfs = append(c.HostRootfs, inspect.HostDirectory{Host: e.host, Container: e.container, Writable: e.writable})
	}
}

// Prepare implements [process.Hook]. An image is mounted by then.
func (h *Rootfs) Prepare(_ context.Context, c *process.Config) error {
	h.bundle = c.Bundle
	made, err := makeSkeletons(c.Bundle)
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }() // opened for its name only
	if len(c.Mounts) == 0 {
		if err := h.mountRoot(c); err != nil {
			return err
		}
	}
	root, err := os.Open(c.Rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for its name only
	// What is mounted must have no link in its path (Created).
	bundle, err := filepath.EvalSymlinks(c.Bundle)
	if err != nil {
		return err
	}
	spec := *c.Spec
	for i, e := range h.entries {
		v := view{hidden: h.hidden, taken: h.taken(e, c), entries: h.entries, made: made}
		if slices.ContainsFunc(v.taken, func(t mountPoint) bool { return t.path == e.container }) {
			continue // a mount of the configuration covers it
		}
		if err := v.add(e, int(root.Fd()), filepath.Join(bundle, skeletons), fmt.Sprint(i)); err != nil {
			return fmt.Errorf("host-rootfs: show %q: %w", e.host, err)
		}
		for _, m := range v.mounts {
			spec.Mounts = insertMount(spec.Mounts, m)
			if !isMasked(m.Destination, spec.Linux.MaskedPaths) {
				h.binds = append(h.binds, m)
			}
		}
	}
	c.Spec = &spec
	return nil
}

func isMasked(path string, masked []string) bool {
	return slices.ContainsFunc(masked, func(m string) bool { return within(path, filepath.Clean(m)) })
}

// mountRoot mounts a root file system in memory. The directory of the configuration must be empty, as it is hidden.
func (h *Rootfs) mountRoot(c *process.Config) error {
	content, err := os.ReadDir(c.Rootfs)
	if err != nil || len(content) > 0 {
		return errors.Join(err, fmt.Errorf(
			"root.path %q: must be an empty directory where host-rootfs is set and there is no image: %w",
			c.Rootfs, errdefs.ErrInvalidArgument))
	}
	c.Rootfs = filepath.Join(c.Bundle, "rootfs")
	if err := os.MkdirAll(c.Rootfs, 0o711); err != nil {
		return err
	}
	owner := idmap.Root(c.Spec.Linux.UIDMappings, c.Spec.Linux.GIDMappings)
	options := fmt.Sprintf("mode=0755,uid=%d,gid=%d", owner.UID, owner.GID)
	if err := unix.Mount("host-rootfs", c.Rootfs, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mount root file system: %w", &os.PathError{Op: "mount", Path: c.Rootfs, Err: err})
	}
	h.mounted = true
	tmp, mode := filepath.Join(c.Rootfs, "tmp"), os.ModeSticky|0o777
	err = errors.Join(os.Mkdir(tmp, mode), os.Lchown(tmp, owner.UID, owner.GID), os.Chmod(tmp, mode))
	if err != nil {
		return fmt.Errorf("make /tmp in the root file system: %w", err)
	}
	return nil
}

// Removed implements [process.Hook].
func (h *Rootfs) Removed() error {
	if h.bundle == "" {
		return nil
	}
	err := removeSkeletons(h.bundle)
	if h.mounted {
		err = errors.Join(err, cleanup.UnmountRootfs(h.bundle))
	}
	return err
}

// Save implements [extension.State]: whether a root file system is mounted.
func (h *Rootfs) Save(*handover.Saver) (state any, thaw func()) { return h.mounted, func() {} }

// Restore implements [extension.State].
func (h *Rootfs) Restore(_ *handover.Loader, state json.RawMessage, c *process.Config) error {
	h.bundle = c.Bundle
	return json.Unmarshal(state, &h.mounted)
}

// insertMount puts m after what it lies in and before what lies in it: mounts of the configuration come on top.
func insertMount(mounts []specs.Mount, m specs.Mount) []specs.Mount {
	at := 0
	for i, other := range mounts {
		if below(m.Destination, filepath.Clean(other.Destination)) {
			at = i + 1
		}
	}
	return slices.Insert(slices.Clip(mounts), at, m)
}

// Created implements [process.Hook]. It refuses a container with other mounts than Prepare found: the runtime mounts
// by name, and anybody who may write to a directory above can put a link there meanwhile.
func (h *Rootfs) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", init.Pid()), unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // an init that is dead sees nothing
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for its name only
	root := int(file.Fd())
	for _, m := range h.binds {
		want, err := statAt(unix.AT_FDCWD, m.Source, unix.RESOLVE_NO_SYMLINKS)
		got, gotErr := statAt(root, m.Destination, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
		if err = errors.Join(err, gotErr); err == nil && (got.Dev != want.Dev || got.Ino != want.Ino) {
			err = errors.New("something else is there")
		}
		if err != nil {
			return fmt.Errorf("host-rootfs: %q in the container is not %q of the host, or either was replaced: %w: %w",
				m.Destination, m.Source, err, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

func statAt(dir int, path string, resolve uint64) (info unix.Stat_t, err error) {
	fd, err := unixfile.Openat2(dir, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return info, err
	}
	defer unix.Close(fd) //nolint:errcheck // opened for its name only
	err = unix.Fstat(fd, &info)
	return info, err
}
