// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/memprog"
)

// Launcher holds the launcher program. Its methods may be called concurrently.
type Launcher struct {
	file *os.File
}

// New makes a Launcher. Where the kernel has no executable memory files or is older than Linux 5.9, or the launcher is
// not written for the machine, it is errdefs.ErrNotImplemented.
func New() (*Launcher, error) {
	program, entry := code()
	file, err := memprog.New("launcher", program, entry)
	if err != nil {
		return nil, err
	}
	// The newest call that is needed, here with no descriptor to close.
	if err := unix.CloseRange(math.MaxUint32, math.MaxUint32, 0); err != nil {
		_ = file.Close() // nothing more is to be written
		return nil, fmt.Errorf("launcher: close_range: %w: %w", err, errdefs.ErrNotImplemented)
	}
	return &Launcher{file: file}, nil
}

// path is the program's in this process and in a child before it runs the program.
func (l *Launcher) path() string { return "/proc/self/fd/" + strconv.Itoa(int(l.file.Fd())) }
