// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// childInfo is siginfo_t as the kernel fills it for SIGCHLD (sigaction(2));
// unix.Siginfo leaves the union opaque. The union is aligned for a pointer.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte // pads three int32 to the union
	pid                int32
}

// siginfoPid is si_pid; 0 when no child was found.
func siginfoPid(info *unix.Siginfo) int {
	return int((*childInfo)(unsafe.Pointer(info)).pid)
}
