// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// The oldest kernel on which the tests run. What later ones have is tried once, and done without where it is absent.
const oldestMajor, oldestMinor = 5, 10

// CheckKernel refuses a kernel that is too old.
func CheckKernel() error {
	var uts unix.Utsname
	_ = unix.Uname(&uts) // fails for no other reason than a bad address
	return checkRelease(unix.ByteSliceToString(uts.Release[:]))
}

// checkRelease takes a release that it cannot read: who named it knows what it is.
func checkRelease(release string) error {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
		return nil
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("the kernel is Linux %s, and %d.%d is the oldest that is supported: %w", release, oldestMajor,
			oldestMinor, errdefs.ErrNotImplemented)
	}
	return nil
}
