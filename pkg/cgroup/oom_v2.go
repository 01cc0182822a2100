// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"syscall"
)

// events is memory.events of a v2 cgroup. Its numbers are those of the whole subtree; memory.events.local, which is not
// used, leaves out the cgroups that a container makes for itself (cgroup-v2.rst, "Memory Interface Files").
//
// The kernel wakes those who poll the file when a number changes. That is what is used rather than inotify, of which a
// user has 128 instances for all programs by default (fs.inotify.max_user_instances), fewer than a node has containers.
type events struct {
	file counter
	conn syscall.RawConn
}

func openEvents(dir string) (source, error) {
	file, err := openCounter(dir, "memory.events")
	if err != nil {
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &events{file, conn}, nil
}

func (e *events) kills() (uint64, error) { return e.file.value("oom_kill") }

// await lets Go's poller wait for the file: the function is called once at first and again after each wake-up, until the
// file is closed. A file that cannot be polled, which is none of cgroup2, makes it return at once.
func (e *events) await(look func()) {
	_ = e.conn.Read(func(uintptr) bool { // the error says that the file was closed, which is how it is to end
		look()
		return false
	})
}

func (e *events) close() { _ = e.file.Close() } // closing a control file cannot fail
