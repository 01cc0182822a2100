// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/internal/testx"
)

// nullArg is the argument of this program that tries to change the mount that its stdin is on.
const nullArg = "change-null"

// changeNull prints what it could do. In its mount namespace it has all rights.
func changeNull() {
	for what, attr := range map[string]unix.MountAttr{
		"writable": {Attr_clr: unix.MOUNT_ATTR_RDONLY}, "without devices": {Attr_set: unix.MOUNT_ATTR_NODEV},
	} {
		if unix.MountSetattr(0, "", unix.AT_EMPTY_PATH, &attr) == nil {
			fmt.Fprintln(os.Stdout, "made it", what)
		}
	}
	if unix.MoveMount(0, "", unix.AT_FDCWD, "/tmp", unix.MOVE_MOUNT_F_EMPTY_PATH) == nil ||
		unix.MoveMount(0, "", unix.AT_FDCWD, "/proc/self/exe", unix.MOVE_MOUNT_F_EMPTY_PATH) == nil {
		fmt.Fprintln(os.Stdout, "moved it")
	}
	if !errors.Is(unix.Fchmod(0, 0o666), unix.EROFS) { //nolint:gosec // the mode it has
		fmt.Fprintln(os.Stdout, "changed the mode")
	}
}

func TestNull_CannotBeChangedFromAUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: needs root, to mount")
	}
	f, err := openNull(unix.O_RDWR)
	testx.Must(t, err)
	defer f.Close()
	cmd := exec.Command(os.Args[0], nullArg)
	cmd.Stdin = f
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("root of a user namespace: %v\n%s", err, out)
	}
	if n, err := f.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("afterwards, Write = %d, %v", n, err)
	}
}
