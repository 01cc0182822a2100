// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// Created implements [process.Hook]. An init that is dead sees nothing.
func (h *Rootfs) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	err := h.checkBinds(init.Pid())
	if err == nil && len(h.late) > 0 {
		err = mountLate(init.Pid(), h.late)
	}
	if errors.Is(err, errDead) {
		return nil
	}
	return err
}

var errDead = errors.New("init is dead")

// checkBinds refuses a container in which something else was mounted than Parse found. libcontainer mounts by name, in
// the container's mount namespace, where no descriptor of the shim can be mounted; so whoever may write to a directory
// above can put a link there meanwhile.
func (h *Rootfs) checkBinds(pid int) error {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return errDead
	}
	if err != nil {
		return fmt.Errorf("root directory of the container: %w", err)
	}
	defer func() { _ = unix.Close(root) }() // opened for its name only
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
func mountLate(pid int, list []entry) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if errors.Is(err, os.ErrNotExist) {
		return errDead
	}
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // opened for its name only
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
	err = osthread.Run(func() error { // the thread stays in the container's mount namespace
		err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS))
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

// cloneMount returns a descriptor of a new mount that is nowhere yet.
func cloneMount(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE,
	})
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
