// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/memprog"
	"sandbox.internal/shim/pkg/reaper"
)

// Launcher holds the launcher program. Its methods may be called concurrently.
type Launcher struct {
	file   *os.File
	reaper *reaper.Reaper
}

// New makes a Launcher whose children reaper leaves alone. Where the kernel has no executable memory files or is older
// than Linux 5.10, or the launcher is not written for the machine, it is errdefs.ErrNotImplemented.
func New(reaper *reaper.Reaper) (*Launcher, error) {
	program, entry := code()
	file, err := memprog.New("launcher", program, entry)
	if err != nil {
		return nil, err
	}
	// The newest that is needed.
	fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK)
	if err != nil {
		_ = file.Close() // nothing more is to be written
		return nil, fmt.Errorf("launcher: pidfd_open: %w: %w", err, errdefs.ErrNotImplemented)
	}
	_ = unix.Close(fd) // nothing is done with it
	return &Launcher{file: file, reaper: reaper}, nil
}

// path is the program's in this process and in a child before it runs the program.
func (l *Launcher) path() string { return "/proc/self/fd/" + strconv.Itoa(int(l.file.Fd())) }
