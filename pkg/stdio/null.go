// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// openNull opens /dev/null from a read-only mount of it outside of the file system: root of a container, who has it as
// a standard stream, can change neither the mode nor the owner of the host's device. Before Linux 5.12, and for a shim
// that may not mount, it is the host's.
func openNull(flags int) (*os.File, error) {
	nullMount.mu.Lock()
	if nullMount.fd < 0 {
		nullMount.fd = mountNull()
	}
	mounted := fmt.Sprintf("/proc/self/fd/%d", nullMount.fd)
	nullMount.mu.Unlock()
	fd, err := openFD(mounted, flags, 0)
	if err != nil {
		fd, err = openFD(os.DevNull, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

type mountedNull struct {
	mu sync.Mutex
	// +checklocks:mu
	fd int // with O_PATH; -1 until it is needed, and open from then on
}

var nullMount = mountedNull{fd: -1}

// mountNull returns -1 if it cannot mount.
func mountNull() int {
	tree, err := unix.OpenTree(unix.AT_FDCWD, os.DevNull, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1
	}
	// The kernel then takes the mount out of its namespace. Otherwise a process with a descriptor and a user namespace
	// could move the mount and change its flags.
	defer unix.Close(tree) //nolint:errcheck // as above
	readonly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &readonly) != nil {
		return -1
	}
	fd, _ := openFD(fmt.Sprintf("/proc/self/fd/%d", tree), unix.O_PATH, 0) // -1 if it fails
	return fd
}
