// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"errors"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

func TestOpenProcfs_RefusesWhatIsMountedThere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("needs root, to mount")
	}
	for _, tt := range []struct {
		name, source, kind string
		flags              uintptr
	}{
		{"another file system", "none", "tmpfs", 0},
		{"a part of /proc", "/proc/sys", "", unix.MS_BIND},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := native.OnThread(func() error { // with a mount namespace of its own, which ends with it
				if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
					return err
				}
				if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
					return err
				}
				proc, err := openProcfs()
				if err != nil {
					return err
				}
				if err := errors.Join(proc.Close(), unix.Mount(tt.source, "/proc", tt.kind, tt.flags, "")); err != nil {
					return err
				}
				if proc, err = openProcfs(); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("openProcfs = %v, %v, want failed precondition", proc, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
