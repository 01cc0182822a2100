// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/idmap"
	"sandbox.internal/shim/pkg/osthread"
)

// as calls f on a thread of its own, for which the files that it makes are another's. It keeps its privileges.
func as(owner idmap.Owner, f func() error) error {
	return osthread.Run(func() error { return become(owner, f) })
}

// become is called on a thread that ends after it.
func become(owner idmap.Owner, f func() error) (err error) {
	thread := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&thread, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return os.NewSyscallError("prctl(PR_GET_DUMPABLE)", err)
	}
	if dumpable == 1 { // a change of the user takes this from the whole process (proc_pid(5)); no other value can be set
		defer func() { err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)) }()
	}
	if err := errors.Join(unix.Setfsgid(owner.GID), unix.Setfsuid(owner.UID)); err != nil {
		return err
	}
	// The change takes those over files away (capabilities(7)), which the directory may need.
	if err := unix.Capset(&thread, &caps[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return f()
}
