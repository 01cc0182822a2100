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
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/osthread"
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
	user    *hostUser     // nil if none was asked for
}

// hostTimeout bounds how long the shim waits for file systems of the host, each time that it looks at them. A volume
// anywhere below a directory, such as an NFS server, may not answer.
const hostTimeout = 5 * time.Second

// patiently calls look, which may go on when patiently has returned an error.
func patiently(setting settings.Value, look func() error) error {
	err := unixfile.Within(hostTimeout, look)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s %q: %w", setting.Key, setting.Text, err)
	}
	return err
}

// Parse reads the settings host-rootfs, its mask and its user, and looks for what they name on the host.
func Parse(list, mask, user settings.Value) (Rootfs, error) {
	hides, err := parseMask(mask)
	if err != nil || !list.IsSet() || list.Text == Off {
		return Rootfs{}, err
	}
	requested, err := parseList(list)
	if err != nil {
		return Rootfs{}, err
	}
	var found Rootfs
	if err := patiently(list, func() (err error) {
		found, err = find(list, requested, hides, user)
		return err
	}); err != nil {
		return Rootfs{}, err
	}
	return found, nil
}

func find(list settings.Value, requested []entry, hides bool, user settings.Value) (Rootfs, error) {
	entries, err := findEntries(list, requested)
	if err != nil {
		return Rootfs{}, err
	}
	h := Rootfs{setting: list, entries: entries, hidden: newHidden()}
	if hides {
		h.hidden.hideDefault()
	}
	if user.IsSet() {
		if h.user, err = findUser(user, passwdFile, groupFile); err != nil {
			return Rootfs{}, err
		}
	}
	for _, e := range entries {
		if path := h.hidden.firstIn(e.host); e.writable && path != "" {
			return Rootfs{}, refuse(list, "a list in which %q is read-only, since host-rootfs.mask hides %q", e.host, path)
		}
	}
	return h, nil
}

// IsEmpty reports whether the container shows nothing of the host.
func (h *Rootfs) IsEmpty() bool { return len(h.entries) == 0 }

// Inspect lists what the container shows of the host.
func (h *Rootfs) Inspect() []inspect.HostDirectory {
	var all []inspect.HostDirectory
	for _, e := range h.entries {
		all = append(all, inspect.HostDirectory{Host: e.host, Container: e.container, Writable: e.writable})
	}
	return all
}

// RefuseCheckpoint returns an error of the given class unless h is empty. criu does not support mounts that lie within
// others of the host, and no checkpoint has the root file system in memory.
func (h *Rootfs) RefuseCheckpoint(what string, class error) error {
	if h.IsEmpty() {
		return nil
	}
	return fmt.Errorf("%s %q: a container with directories of the host %s: %w", h.setting.Key, h.setting.Text, what, class)
}

// RootMounts returns the mounts of the root file system: the image's or, without one, a file system in memory in place
// of the directory that the configuration names. That directory must be empty, as its content would be hidden.
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
	owner := rootOwner(c.Spec)
	options := []string{"mode=0755", fmt.Sprintf("uid=%d", owner.UID), fmt.Sprintf("gid=%d", owner.GID)}
	return []mount.Mount{{Type: "tmpfs", Source: "host-rootfs", Options: options}}, nil
}

func rootOwner(spec *specs.Spec) idmap.Owner {
	return idmap.Root(spec.Linux.UIDMappings, spec.Linux.GIDMappings)
}

// Prepare implements [process.Hook]. The root file system is mounted by then.
func (h *Rootfs) Prepare(_ context.Context, c *process.Config) error {
	h.bundle = c.Bundle
	made, err := makeSkeletons(c.Bundle)
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }() // then what goes on once the wait was given up makes nothing more
	prepared, config := *h, *c          // as above, these alone change
	if err := patiently(h.setting, func() error { return prepared.prepare(&config, made) }); err != nil {
		return err
	}
	*h, *c = prepared, config
	return nil
}

func (h *Rootfs) prepare(c *process.Config, made *os.Root) error {
	if err := h.user.check(c.Spec); err != nil {
		return err
	}
	if h.ownRoot {
		if err := makeTmp(c.Rootfs, rootOwner(c.Spec)); err != nil {
			return fmt.Errorf("make /tmp in the root file system: %w", err)
		}
	}
	root, err := os.Open(c.Rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for its name only
	// What is mounted must have no link in its path (checkBinds).
	bundle, err := filepath.EvalSymlinks(c.Bundle)
	if err != nil {
		return err
	}
	spec := *c.Spec
	if h.user != nil {
		first := *spec.Process
		h.SetUser(&first)
		spec.Process = &first
	}
	masked := func(path string) bool { return isMasked(path, spec.Linux.MaskedPaths) }
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
func makeTmp(rootfs string, owner idmap.Owner) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // opened for its name only
	const name, mode = "tmp", 0o777
	return errors.Join(root.Mkdir(name, mode), root.Lchown(name, owner.UID, owner.GID),
		root.Chmod(name, mode|os.ModeSticky)) // umask
}

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
	return removeSkeletons(bundle)
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

// Created implements [process.Hook]. An init that is dead sees nothing.
func (h *Rootfs) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	of, err := openInit(init.Pid())
	if err == nil {
		err = patiently(h.setting, func() error {
			defer of.close()
			err := h.checkBinds(int(of.root.Fd()))
			if err == nil && len(h.late) > 0 {
				err = mountLate(int(of.mounts.Fd()), h.late)
			}
			return err
		})
	}
	if errors.Is(err, errDead) {
		return nil
	}
	return err
}

var errDead = errors.New("init is dead")

// opened is the root directory and the mount namespace of an init: later its pid may be another's.
type opened struct{ root, mounts *os.File }

func openInit(pid int) (o opened, err error) {
	name := func(file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }
	if o.root, err = os.OpenFile(name("root"), unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
		o.mounts, err = os.Open(name("ns/mnt"))
	}
	if err != nil {
		o.close()
	}
	if errors.Is(err, os.ErrNotExist) {
		return opened{}, errDead
	}
	return o, err
}

func (o opened) close() {
	_ = o.root.Close() // opened for their names only
	_ = o.mounts.Close()
}

// checkBinds refuses a container in which something other than what Parse found was mounted. libcontainer mounts by
// name, in the container's mount namespace, where no descriptor of the shim can be mounted; so anybody who may write to
// a directory above can put a link there meanwhile.
func (h *Rootfs) checkBinds(root int) error {
	for _, m := range h.binds {
		want, err := statAt(unix.AT_FDCWD, m.Source, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return replaced("%q of the host changed while it was mounted: %w", m.Source, err)
		}
		got, err := statAt(root, m.Destination, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
		if err != nil {
			return replaced("look at %q in the container: %w", m.Destination, err)
		}
		if !os.SameFile(got, want) {
			return replaced("what is at %q in the container is not %q of the host: that was replaced while it was mounted, "+
				"or something else is mounted there", m.Destination, m.Source)
		}
	}
	return nil
}

func replaced(format string, args ...any) error {
	return fmt.Errorf("host-rootfs: %w: %w", fmt.Errorf(format, args...), errdefs.ErrFailedPrecondition)
}

// mountLate mounts files and directories of /etc, whose mount points exist. They are many, and libcontainer would take
// twenty times as long for each. In /etc only root can have put a link meanwhile.
func mountLate(ns int, list []entry) error {
	trees := make([]int, 0, len(list))
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd) // one that was not moved is unmounted
		}
	}()
	for _, e := range list {
		fd, err := cloneMount(e.host)
		if err != nil {
			return fmt.Errorf("host-rootfs: mount %q: %w", e.host, err)
		}
		trees = append(trees, fd)
	}
	err := osthread.Run(func() error { // the thread stays in the container's mount namespace
		err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(ns, unix.CLONE_NEWNS))
		for i := 0; err == nil && i < len(list); i++ {
			err = unix.MoveMount(trees[i], "", unix.AT_FDCWD, list[i].container, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("host-rootfs: mount files of /etc in the container: %w", err)
	}
	return nil
}

// cloneMount returns a descriptor of a new mount that is not attached yet.
func cloneMount(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE,
	})
	if errors.Is(err, unix.ENOSYS) {
		err = fmt.Errorf("mount_setattr needs Linux 5.12: %w: %w", err, errdefs.ErrNotImplemented)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func statAt(dir int, path string, resolve uint64) (os.FileInfo, error) {
	fd, err := unixfile.Openat2(dir, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer func() { _ = file.Close() }() // opened for its name only
	return file.Stat()
}
