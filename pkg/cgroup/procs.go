// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Procs returns the ids of all processes in the cgroup and the cgroups nested in it, each once, in rising order. On v1
// it is the union over all hierarchies, since a process on its way in is not in each of them yet. Processes outside of
// the caller's pid namespace have no id and are left out. A cgroup of which no directory is left is
// errdefs.ErrNotFound.
func (c *Cgroup) Procs() ([]int, error) {
	var pids []int
	found := false
	for _, dir := range c.dirs {
		err := walk(dir, func(n node) (err error) {
			pids, err = appendProcs(pids, n)
			return err
		}, nil)
		switch {
		case err == nil:
			found = true
		case !IsGone(err):
			return nil, fmt.Errorf("list processes of cgroup %s: %w", c, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", c, errdefs.ErrNotFound)
	}
	slices.Sort(pids) // the kernel promises neither an order nor that it lists a process once
	return slices.Compact(pids), nil
}

// appendProcs appends the processes of n itself to pids.
func appendProcs(pids []int, n node) ([]int, error) {
	const file = "cgroup.procs"
	b, err := n.read(file)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return pids, nil // a threaded cgroup of v2: the domain above lists its processes
	}
	if err != nil {
		return pids, err
	}
	for line := range bytes.Lines(b) {
		pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
		if err != nil {
			return pids, fmt.Errorf("parse %s: %w", filepath.Join(n.Name(), file), err)
		}
		if pid > 0 { // 0 is a process outside of our pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// describe names processes for a message: their number, and program and state of the first few (proc_pid_stat(5)). No
// signal ends one in state D.
func describe(pids []int) string {
	const most = 3
	var names []string
	for _, pid := range pids[:min(len(pids), most)] {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
		if err != nil || open < 0 || end < open || len(b) < end+3 {
			names = append(names, fmt.Sprintf("%d (gone)", pid))
			continue
		}
		names = append(names, fmt.Sprintf("%d (%s, state %c)", pid, b[open+1:end], b[end+2]))
	}
	if len(pids) > most {
		names = append(names, "…")
	}
	return fmt.Sprintf("%d processes [%s]", len(pids), strings.Join(names, ", "))
}

// Contains returns nil if a process is in the cgroup or one nested in it. pidfd is the process's, or -1, which stands
// for the process that has the id now. A dead process counts in its last cgroup where the kernel keeps that (Linux 6.17
// with cgroup v2 or hybrid); else it is errdefs.ErrNotFound. A process elsewhere is errdefs.ErrPermissionDenied.
func (c *Cgroup) Contains(pid, pidfd int) error {
	ended := fmt.Errorf("process %d: ended before its cgroup was known: %w", pid, errdefs.ErrNotFound)
	if pidfd < 0 {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return ended
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
	// Checked after the list was read, so that the id still was that of the process.
	if hasEnded(pidfd) {
		return ended
	}
	if !slices.Contains(pids, pid) {
		return fmt.Errorf("process %d: not in cgroup %s: %w", pid, c, errdefs.ErrPermissionDenied)
	}
	return nil
}

// lastCgroup returns the id of the v2 cgroup in which a process is or was (PIDFD_GET_INFO, include/uapi/linux/pidfd.h).
func lastCgroup(pidfd int) (id uint64, ok bool) {
	const size, maskAt, cgroupAt = 72, 0, 8 // of struct pidfd_info, as the number of PIDFD_GET_INFO has it
	var info [size]byte
	binary.NativeEndian.PutUint64(info[maskAt:], unix.PIDFD_INFO_CGROUPID|unix.PIDFD_INFO_EXIT)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), unix.PIDFD_GET_INFO, uintptr(unsafe.Pointer(&info)))
	if errno != 0 || binary.NativeEndian.Uint64(info[maskAt:])&unix.PIDFD_INFO_CGROUPID == 0 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(info[cgroupAt:]), true
}

// containsID reports whether id is that of the cgroup in the v2 hierarchy, or of one nested in it. The id of a cgroup
// is the inode number of its directory.
func (c *Cgroup) containsID(id uint64) bool {
	if c.paths[""] == "" {
		return false
	}
	found := false
	_ = walk(c.paths[""], func(n node) error { // one that is gone does not have the id
		s, err := n.stat()
		found = found || err == nil && s.Ino == id
		return nil
	}, nil)
	return found
}

func hasEnded(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err != nil || n > 0
		}
	}
}
