// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"os"
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
}

var null nullMount

// open opens the device. Before Linux 5.12, and for a shim that may not mount, or not open what is nowhere, the device
// is opened where the host has it.
func (n *nullMount) open(flags int) (*os.File, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd == 0 {
		n.fd = mountNull()
	}
	fd, err := -1, error(unix.ENOENT)
	if n.fd != 0 {
		fd, err = openFD(fmt.Sprintf("/proc/self/fd/%d", n.fd), flags, 0)
	}
	if err != nil {
		fd, err = openFD(os.DevNull, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

// mountNull returns 0 if it cannot mount.
func mountNull() int {
	tree, err := unix.OpenTree(unix.AT_FDCWD, os.DevNull, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return 0
	}
	// The kernel takes the mount out of its namespace then. Otherwise anybody who has a descriptor of the device and
	// makes a user namespace could move it and change its flags.
	defer unix.Close(tree) //nolint:errcheck // as above
	readonly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &readonly) != nil {
		return 0
	}
	fd, err := openFD(fmt.Sprintf("/proc/self/fd/%d", tree), unix.O_PATH, 0)
	if err != nil {
		return 0
	}
	return fd
}
