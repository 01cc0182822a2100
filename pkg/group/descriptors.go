// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Numbers of descriptors that must be left for a shim to take another pod, or another container of a pod that it has.
// Execs, statistics and connections of those that it has need some.
const (
	leftForPod       = 200
	leftForContainer = 100
)

// room returns errdefs.ErrResourceExhausted if the shim can open fewer than left descriptors.
func room(left uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0) // the lowest that is free
	if err == nil {
		_ = unix.Close(fd) // nothing was written
	} else {
		fd = int(limit.Cur) // it fails only if there is none
	}
	if uint64(fd)+left > limit.Cur {
		return fmt.Errorf("descriptors of the shim: %d of %d are open (RLIMIT_NOFILE), and at least %d must be left: %w",
			fd, limit.Cur, left, errdefs.ErrResourceExhausted)
	}
	return nil
}
