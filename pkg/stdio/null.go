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
	fd int // with O_PATH; 0 until it is needed, and open from then on
	// +checklocks:mu
	unknown error // ENOSYS if the kernel lacks a system call for it
}

var null nullMount

// open opens the device. It keeps its owner. Before Linux 5.12, and for a shim that may not mount, or not open what is
// nowhere, the device is opened where the host has it.
func (n *nullMount) open(flags int) (*os.File, error) {
	mount, err := n.mount()
	fd := -1
	if err == nil {
		fd, err = openFD(fmt.Sprintf("/proc/self/fd/%d", mount), flags, 0)
	}
	notHere := func(e unix.Errno) bool { return errors.Is(err, e) }
	if slices.ContainsFunc([]unix.Errno{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EINVAL}, notHere) {
		fd, err = openFD(os.DevNull, flags, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", os.DevNull, err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

func (n *nullMount) mount() (fd int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd == 0 && n.unknown == nil {
		n.fd, err = mountNull()
		if errors.Is(err, unix.ENOSYS) {
			n.unknown = err
		}
		return n.fd, err
	}
	return n.fd, n.unknown
}

func mountNull() (fd int, err error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, os.DevNull, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("open_tree", err)
	}
	// The kernel takes the mount out of its namespace then. Otherwise anybody who has a descriptor of the device and
	// makes a user namespace could move it and change its flags.
	defer func() { _ = unix.Close(tree) }()
	readonly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &readonly); err != nil {
		return 0, os.NewSyscallError("mount_setattr", err)
	}
	if fd, err = openFD(fmt.Sprintf("/proc/self/fd/%d", tree), unix.O_PATH, 0); err != nil {
		return 0, err
	}
	return fd, nil
}
