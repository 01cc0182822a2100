// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// doorkeeper holds whoever opens a file, or runs it, as a file system does that does not answer (fanotify(7)).
type doorkeeper struct {
	t     *testing.T
	group *os.File
	held  []int32 // descriptors of the events that wait for an answer
}

// The events that a doorkeeper can hold.
const (
	opening = unix.FAN_OPEN_PERM
	running = unix.FAN_OPEN_EXEC_PERM
)

// holdAt holds whoever does what to the file at path, until letGo or the end of the test.
func holdAt(t *testing.T, path string, what uint64) *doorkeeper {
	t.Helper()
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	must(t, err)
	k := &doorkeeper{t: t, group: os.NewFile(uintptr(fd), "fanotify")}
	t.Cleanup(k.letGo)
	must(t, unix.FanotifyMark(fd, unix.FAN_MARK_ADD, what, unix.AT_FDCWD, path))
	return k
}

// wait returns the pid of the process that came next.
func (k *doorkeeper) wait() (pid int) {
	k.t.Helper()
	eventually(k.t, "a process at the file that is watched", func() bool {
		var b [unix.FAN_EVENT_METADATA_LEN]byte
		conn, err := k.group.SyscallConn()
		must(k.t, err)
		n := 0
		must(k.t, conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b[:]) }))
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		must(k.t, err)
		var event unix.FanotifyEventMetadata
		must(k.t, binary.Read(bytes.NewReader(b[:n]), binary.NativeEndian, &event))
		k.held = append(k.held, event.Fd)
		pid = int(event.Pid)
		return true
	})
	return pid
}

// letGo lets all go on, now and in future.
func (k *doorkeeper) letGo() {
	for _, fd := range k.held {
		_ = unix.Close(int(fd)) // only read
	}
	k.held = nil
	_ = k.group.Close() // which answers all; a second time it is closed
}
