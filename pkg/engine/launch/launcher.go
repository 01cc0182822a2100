// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Launcher holds the launcher program. Its methods may be called concurrently.
type Launcher struct {
	file *os.File
}

// sealed is what keeps a container from changing the program, which it can reach as /proc/PID/exe (CVE-2019-5736).
// F_SEAL_EXEC is added where it is known, since Linux 6.3; ErrNotStarted is for what it does not keep from the mode.
const sealed = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// beyond is a number above those of all descriptors that a child is started with, which Go puts in their places before
// it runs the program by the number of the file (golang.org/issue/61751).
const beyond = 64

// New makes a Launcher. Where the kernel has no executable memory files or is older than Linux 5.9, or the launcher is
// not written for the machine, it is errdefs.ErrNotImplemented.
func New() (*Launcher, error) {
	code := image()
	if code == nil {
		return nil, fmt.Errorf("launcher: not for this processor: %w", errdefs.ErrNotImplemented)
	}
	// The newest call that is needed, here with no descriptor to close.
	if err := unix.CloseRange(math.MaxUint32, math.MaxUint32, 0); err != nil {
		return nil, fmt.Errorf("launcher: close_range: %w: %w", err, errdefs.ErrNotImplemented)
	}
	fd, err := unix.MemfdCreate("launcher", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("launcher", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("launcher: memfd_create: %w: %w", err, errdefs.ErrNotImplemented)
	}
	memory := os.NewFile(uintptr(fd), "launcher")
	defer memory.Close() //nolint:errcheck // the other descriptor counts
	if _, err := memory.Write(code); err != nil {
		return nil, fmt.Errorf("launcher: %w", err)
	}
	const executable = 0o555
	if err := memory.Chmod(executable); err != nil {
		return nil, fmt.Errorf("launcher: %w", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed|unix.F_SEAL_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err != nil {
		return nil, fmt.Errorf("launcher: seal: %w: %w", err, errdefs.ErrNotImplemented)
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, beyond)
	if err != nil {
		return nil, fmt.Errorf("launcher: %w", os.NewSyscallError("fcntl", err))
	}
	return &Launcher{file: os.NewFile(uintptr(high), "launcher")}, nil
}

// path is the program's in this process and in a child before it runs the program.
func (l *Launcher) path() string { return "/proc/self/fd/" + strconv.Itoa(int(l.file.Fd())) }
