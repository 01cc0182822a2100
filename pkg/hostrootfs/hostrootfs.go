// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package hostrootfs shows files of the host in a container's root file system, so that programs of the host run
// without an image. All of them are bind mounts of the container's configuration: they are made in its mount namespace
// and end with it.
package hostrootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/settings"
	"sandbox.internal/shim/pkg/unixfile"
)

// Rootfs is what one container shows of the host. It is a [process.Hook]. The zero value shows nothing.
type Rootfs struct {
	process.NoHook
	setting settings.Value
	entries []entry // a parent before what lies in it
	hidden  hidden
	ownRoot bool // RootMounts makes the root file system
	bundle  string
	binds   []specs.Mount // that libcontainer mounts and Created checks
	late    []entry       // that Created mounts
}

// Parse reads the settings host-rootfs and host-rootfs.mask, and looks for what they name on the host.
func Parse(list, mask settings.Value) (Rootfs, error) {
	masks, err := parseMasks(mask)
	if err != nil || !list.IsSet() || list.Text == Off {
		return Rootfs{}, err
	}
	requested, err := parseList(list)
	if err != nil {
		return Rootfs{}, err
	}
	entries, err := findEntries(list, requested)
	if err != nil {
		return Rootfs{}, err
	}
	h := Rootfs{setting: list, entries: entries, hidden: findHidden(masks)}
	for _, e := range entries {
		if path := h.hidden.firstIn(e.host); e.writable && path != "" {
			return Rootfs{}, refuse(list,
				fmt.Sprintf("a list in which %q is read-only, since host-rootfs.mask hides %q", e.host, path))
		}
	}
	return h, nil
}

// IsEmpty reports whether the container shows nothing of the host.
func (h *Rootfs) IsEmpty() bool { return len(h.entries) == 0 }

// RefuseCheckpoint returns an error of the given class unless h is empty. criu takes no mounts that lie within others
// of the host, and no checkpoint has the root file system in memory.
func (h *Rootfs) RefuseCheckpoint(what string, class error) error {
	if h.IsEmpty() {
		return nil
	}
	return fmt.Errorf("%s %q: a container with directories of the host %s: %w", h.setting.Key, h.setting.Text, what, class)
}

// RootMounts returns the mounts of the root file system: the image's or, without one, a file system in memory in place
// of the directory that the configuration names. That must be empty, as its content would be hidden.
func (h *Rootfs) RootMounts(c *process.Config, image []mount.Mount) ([]mount.Mount, error) {
	if h.IsEmpty() || len(image) > 0 {
		return image, nil
	}
	content, err := os.ReadDir(c.Rootfs)
	if err != nil || len(content) > 0 {
		return nil, errors.Join(err, fmt.Errorf(
			"root.path %q: must be an empty directory where host-rootfs is set and there is no image: %w",
			c.Rootfs, errdefs.ErrInvalidArgument))
	}
	h.ownRoot = true
	c.Rootfs = filepath.Join(c.Bundle, "rootfs")
	options := []string{"mode=0755"}
	if owner := rootOwner(c.Spec); owner != (idmap.Owner{}) {
		options = append(options, fmt.Sprintf("uid=%d", owner.UID), fmt.Sprintf("gid=%d", owner.GID))
	}
	return []mount.Mount{{Type: "tmpfs", Source: "host-rootfs", Options: options}}, nil
}

func rootOwner(spec *specs.Spec) idmap.Owner {
	return idmap.Root(spec.Linux.UIDMappings, spec.Linux.GIDMappings)
}

// Prepare implements [process.Hook]. The root file system is mounted.
func (h *Rootfs) Prepare(_ context.Context, c *process.Config) error {
	h.bundle = c.Bundle
	if h.ownRoot {
		if err := makeTmp(filepath.Join(c.Rootfs, "tmp"), rootOwner(c.Spec)); err != nil {
			return fmt.Errorf("make /tmp in the root file system: %w", err)
		}
	}
	root, err := os.Open(c.Rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for its name only
	spec := *c.Spec
	masked := func(path string) bool { return isMasked(path, spec.Linux.MaskedPaths) }
	for i, e := range h.entries {
		v := view{hidden: h.hidden, taken: h.taken(e, c), entries: h.entries}
		if slices.ContainsFunc(v.taken, func(t mountPoint) bool { return t.path == e.container }) {
			continue // a mount of the configuration covers it
		}
		if err := v.add(e, int(root.Fd()), filepath.Join(c.Bundle, skeletons, fmt.Sprint(i))); err != nil {
			return fmt.Errorf("host-rootfs: show %q: %w", e.host, err)
		}
		for _, m := range v.mounts {
			spec.Mounts = insertMount(spec.Mounts, m)
			if !masked(m.Destination) {
				h.binds = append(h.binds, m)
			}
		}
		h.late = append(h.late, slices.DeleteFunc(v.late, func(l entry) bool { return masked(l.container) })...)
	}
	c.Spec = &spec
	return nil
}

// makeTmp makes the directory that programs of a host take for granted.
func makeTmp(path string, owner idmap.Owner) error {
	const mode = 0o777 | os.ModeSticky
	return errors.Join(os.Mkdir(path, mode), os.Chown(path, owner.UID, owner.GID), os.Chmod(path, mode)) // umask
}

// isMasked reports whether the runtime mounts something over path for linux.maskedPaths.
func isMasked(path string, masked []string) bool {
	return slices.ContainsFunc(masked, func(m string) bool { return within(path, filepath.Clean(m)) })
}

// Removed implements [process.Hook].
func (h *Rootfs) Removed() error { return Remove(h.bundle) }

// Remove removes what Prepare made in a bundle.
func Remove(bundle string) error {
	if bundle == "" {
		return nil
	}
	return unixfile.RemoveAll(filepath.Join(bundle, skeletons))
}

// insertMount puts m behind what it lies in and before what lies in it: mounts of the configuration come on top.
func insertMount(mounts []specs.Mount, m specs.Mount) []specs.Mount {
	at := 0
	for i, other := range mounts {
		if below(m.Destination, filepath.Clean(other.Destination)) {
			at = i + 1
		}
	}
	return slices.Insert(slices.Clip(mounts), at, m)
}
