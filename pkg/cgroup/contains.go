// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Contains is nil if a process is in the cgroup or one nested in it. pidfd is the process's, or -1: then it is that of the
// process that has the id now. One that is dead is told by its last cgroup where the kernel keeps that (Linux 6.17, and
// cgroup v2 or hybrid). Where nothing is known of it, it is errdefs.ErrNotFound; if it is elsewhere, errdefs.ErrPermissionDenied.
func (c *Cgroup) Contains(pid, pidfd int) error {
	if pidfd < 0 {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fmt.Errorf("process %d: ended before its cgroup was known: %w", pid, errdefs.ErrNotFound)
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		pidfd = fd
	}
	if id, ok := lastCgroup(pidfd); ok && c.containsID(id) {
		return nil
	}
	pids, err := c.Procs()
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	// Asked after the list was read, so that the id is that of the process still.
	if ended(pidfd) {
		return fmt.Errorf("process %d: ended before its cgroup was known: %w", pid, errdefs.ErrNotFound)
	}
	if !slices.Contains(pids, pid) {
		return fmt.Errorf("process %d: not in cgroup %s: %w", pid, c, errdefs.ErrPermissionDenied)
	}
	return nil
}

// lastCgroup is the id of the cgroup of v2 in which a process is or was (PIDFD_GET_INFO, include/uapi/linux/pidfd.h).
func lastCgroup(pidfd int) (id uint64, ok bool) {
	const size, maskAt, cgroupAt = 72, 0, 8 // of struct pidfd_info, as PIDFD_GET_INFO has it in its number
	var info [size]byte
	binary.NativeEndian.PutUint64(info[maskAt:], unix.PIDFD_INFO_CGROUPID|unix.PIDFD_INFO_EXIT)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), unix.PIDFD_GET_INFO, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || binary.NativeEndian.Uint64(info[maskAt:])&unix.PIDFD_INFO_CGROUPID == 0 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(info[cgroupAt:]), true
}

// containsID tells whether id is that of the cgroup in the v2 hierarchy, or of one nested in it. The id of a cgroup is the
// number of its directory's inode.
func (c *Cgroup) containsID(id uint64) bool {
	if c.paths[""] == "" {
		return false
	}
	found := false
	_ = walk(c.paths[""], func(n node) error { // one that is gone is not the one
		s, err := n.stat()
		found = found || err == nil && s.Ino == id
		return nil
	}, stay)
	return found
}

func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err != nil || n > 0
		}
	}
}
