// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// nullMount is a read-only mount of the host's /dev/null that is nowhere in the file system. Through its descriptors
// data can be written, but nobody can change the mode or the owner of the host's device, as root of a container could
// who has it as a standard stream.
type nullMount struct {
	mu sync.Mutex
	// +checklocks:mu
	fd int // 0 until it is needed; it stays open, since the kernel may take long to dissolve a mount
	// +checklocks:mu
	unknown error // ENOSYS if the kernel lacks a system call for it
}

var null nullMount

// open opens the device. It keeps its owner. Before Linux 5.12, and without the right to mount, the device is opened
// where the host has it.
func (n *nullMount) open(flags int) (*os.File, error) {
	path := os.DevNull
	mount, err := n.mount()
	notHere := func(e unix.Errno) bool { return errors.Is(err, e) }
	switch {
	case err == nil:
		path = fmt.Sprintf("/proc/self/fd/%d", mount)
	case !slices.ContainsFunc([]unix.Errno{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EINVAL}, notHere):
		return nil, fmt.Errorf("%s: %w", os.DevNull, err)
	}
	fd, err := openFD(path, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

func (n *nullMount) mount() (fd int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd != 0 || n.unknown != nil {
		return n.fd, n.unknown
	}
	defer func() {
		if errors.Is(err, unix.ENOSYS) {
			n.unknown = err
		}
	}()
	fd, err = unix.OpenTree(unix.AT_FDCWD, os.DevNull, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("open_tree", err)
	}
	readonly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &readonly); err != nil {
		_ = unix.Close(fd) // nothing was written
		return 0, os.NewSyscallError("mount_setattr", err)
	}
	n.fd = fd
	return fd, nil
}
