// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package hostrootfs shows a container directories of the host in its root file system.
package hostrootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// Rootfs is which of the host's directories a container has in its root
// file system. The zero value is none.
//
// All of them are mounts of the container's configuration: they are made in its
// own mount namespace and end with it, so neither Delete nor the delete command
// has to know of them.
type Rootfs struct {
	entries []hostEntry   // a parent before what lies in it
	masks   []string      // paths of the host that are not shown, though what they lie in is
	absent  []string      // the same, of what the host does not have yet
	binds   []specs.Mount // what fill mounts and the container then sees
	from    Setting       // which asks for them
}

// hostEntry is a directory or a file of the host, in a container.
type hostEntry struct {
	host      string // without symbolic links
	container string
	write     bool
	link      string // not empty: what there is instead is a symbolic link to this
}

// Setting is the text of an annotation or a runtime option.
type Setting struct {
	Key   string // of the annotation or the option, for messages
	Text  string
	Asked bool // neither is given where this is false
}

// refuse is the error that names key, value and what is allowed.
func (s Setting) refuse(allowed string) error {
	return fmt.Errorf("%s %q: must be %s: %w", s.Key, s.Text, allowed, errdefs.ErrInvalidArgument)
}

// Parse reads what is asked for, and looks for it on the host.
func Parse(list, mask Setting) (Rootfs, error) {
	masks, err := parseMasks(mask)
	if err != nil || !list.Asked || list.Text == Off {
		return Rootfs{}, err
	}
	asked, err := parseHostList(list)
	if err != nil {
		return Rootfs{}, err
	}
	entries, err := findHostEntries(list, asked)
	if err != nil {
		return Rootfs{}, err
	}
	h := Rootfs{entries: entries, masks: findMasked(masks), absent: findAbsent(masks), from: list}
	for _, e := range entries {
		if masked := h.masked(e); e.write && len(masked) > 0 {
			return Rootfs{}, list.refuse(fmt.Sprintf("a list in which %q is read-only, since it has %q, which host-rootfs.mask masks", e.host, masked[0]))
		}
	}
	return h, nil
}

// Empty reports whether nothing is asked for.
func (h *Rootfs) Empty() bool { return len(h.entries) == 0 }

// RefuseCheckpoint is an error where h has anything.
func (h Rootfs) RefuseCheckpoint(what string, class error) error {
	if len(h.entries) == 0 {
		return nil
	}
	return fmt.Errorf("%s %q: a container with directories of the host %s: %w", h.from.Key, h.from.Text, what, class)
}

// masked is what of e is not to be seen.
func (h Rootfs) masked(e hostEntry) []string {
	return outermost(slices.DeleteFunc(slices.Clone(h.masks), func(path string) bool { return !below(path, e.host) }))
}

// below tells whether path lies in dir. Both are clean.
func below(path, dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") }

// Root is what the host's directories are put into: the image, or where there
// is none a file system in memory, so that nothing is written to the directory
// that the configuration names. It is empty, as its content would not be seen.
func (h Rootfs) Root(c *process.Config, image []mount.Mount) ([]mount.Mount, error) {
	if len(h.entries) == 0 || len(image) > 0 {
		return image, nil
	}
	content, err := os.ReadDir(c.Rootfs)
	if err != nil || len(content) > 0 {
		return nil, errors.Join(fmt.Errorf("root.path %q: must be an empty directory where host-rootfs is asked for and there is no image: %w", c.Rootfs, errdefs.ErrInvalidArgument), err)
	}
	c.Rootfs = filepath.Join(c.Bundle, "rootfs")
	options := []string{"mode=0755"}
	if uid, gid, ok := rootIDs(c.Spec.Linux); ok {
		options = append(options, fmt.Sprintf("uid=%d", uid), fmt.Sprintf("gid=%d", gid))
	}
	return []mount.Mount{{Type: "tmpfs", Source: "host-rootfs", Options: options}}, nil
}

// rootIDs is who on the host root of the container is, and false where that is
// root itself.
func rootIDs(l *specs.Linux) (uid, gid uint32, ok bool) {
	find := func(list []specs.LinuxIDMapping) uint32 {
		for _, m := range list {
			if m.ContainerID == 0 {
				return m.HostID
			}
		}
		return 0
	}
	uid, gid = find(l.UIDMappings), find(l.GIDMappings)
	return uid, gid, uid != 0 || gid != 0
}

// Fill puts h into the root file system, which is mounted, and into the
// configuration. made tells whether the root is one that h.Root made.
func (h *Rootfs) Fill(c *process.Config, made bool) error {
	if len(h.entries) == 0 {
		return nil
	}
	root, err := unix.Open(c.Rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: c.Rootfs, Err: err}
	}
	defer func() { _ = unix.Close(root) }() // opened for its name only
	if made {
		if err := makeTemporary(root, c.Spec.Linux); err != nil {
			return fmt.Errorf("make /tmp in the root file system: %w", err)
		}
	}
	spec := *c.Spec
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, e := range h.entries {
		places := h.placesIn(e, c)
		mounts, err := h.place(e, places, root, filepath.Join(c.Bundle, hiddenDir, fmt.Sprint(i)))
		if err != nil {
			return err
		}
		mounts = e.giveWay(mounts, places)
		for _, m := range mounts {
			spec.Mounts = insertMount(spec.Mounts, m)
		}
		h.binds = append(h.binds, seenBinds(c.Spec, mounts)...)
	}
	c.Spec = &spec
	return nil
}

// place makes e a link in root, or tells the mounts that it is. What hides
// something of it is made in dir. places are those in it that have something
// else.
func (h Rootfs) place(e hostEntry, places []place, root int, dir string) ([]specs.Mount, error) {
	if e.link != "" {
		linked, err := linkIn(root, e)
		if err != nil {
			return nil, fmt.Errorf("link %q to %q in the root file system: %w", e.container, e.link, err)
		}
		if linked {
			return nil, nil
		}
	}
	masked := h.masked(e)
	if !e.write {
		masked = outermost(append(masked, Rootfs{masks: h.absent}.masked(e)...))
	}
	if len(masked) == 0 {
		return []specs.Mount{e.bind()}, nil
	}
	mounts, err := e.hide(masked, places, dir)
	if err != nil {
		return nil, fmt.Errorf("mask in %q: %w", e.host, err)
	}
	return mounts, nil
}

// makeTemporary makes what programs of a host take for granted.
func makeTemporary(root int, l *specs.Linux) error {
	const name, mode = "tmp", 0o1777
	if err := unix.Mkdirat(root, name, mode); err != nil {
		return err
	}
	if uid, gid, ok := rootIDs(l); ok {
		if err := unix.Fchownat(root, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.Fchmodat(root, name, mode, 0) // whatever the umask is
}

// linkIn makes the symbolic link of e in the root file system, as it is on the
// host. It is false when an image has something else there, on which the
// directory is mounted then. No link of an image leads out of root.
func linkIn(root int, e hostEntry) (bool, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	dir, err := openat2(root, filepath.Dir(e.container), how)
	if errors.Is(err, unix.ENOENT) {
		return false, nil // libcontainer makes its parents too
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(dir) }() // opened for its name only
	name := filepath.Base(e.container)
	err = unix.Symlinkat(e.link, dir, name)
	if !errors.Is(err, unix.EEXIST) {
		return err == nil, err
	}
	there := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, there)
	return err == nil && string(there[:n]) == e.link, nil
}

// bind is e as it is. It is private, since a mount that the host makes there
// later would not be read-only.
func (e hostEntry) bind() specs.Mount {
	access := "rro"
	if e.write {
		access = "rw"
	}
	return specs.Mount{Destination: e.container, Type: "bind", Source: e.host, Options: []string{"rbind", "rprivate", access, "rnosuid", "rnodev"}}
}

// insertMount puts m behind what it lies in and before what lies in it: what
// the configuration has there itself is seen.
func insertMount(mounts []specs.Mount, m specs.Mount) []specs.Mount {
	at := 0
	for i, other := range mounts {
		if below(m.Destination, filepath.Clean(other.Destination)) {
			at = i + 1
		}
	}
	return slices.Insert(mounts, at, m)
}
