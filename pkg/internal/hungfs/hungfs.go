// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package hungfs provides a file system that does not answer, for tests.
package hungfs

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a FUSE file system on dir that nobody serves: any access to it waits until the test ends, and then gets
// an error. It needs root.
func Mount(t *testing.T, dir string) {
	t.Helper()
	mount(t, dir)
}

func mount(t *testing.T, dir string) (server *os.File) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to mount")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		t.Skip("SKIPPED: needs FUSE in the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("none", dir, "fuse", 0, options); err != nil {
		t.Fatal(err)
	}
	server = os.NewFile(uintptr(fd), "/dev/fuse") // after the mount: the poller does not see what is not mounted
	t.Cleanup(func() {
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) { // the test has done so
			err = nil
		}
		if err := errors.Join(server.Close(), err); err != nil {
			t.Error(err)
		}
	})
	return server
}
