// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package hostrootfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/process"
)

// Prepare implements process.CreateHook.
func (*Rootfs) Prepare(context.Context, *process.Config) error { return nil }

// Created implements process.CreateHook: it looks at what was mounted of the host's directories. libcontainer mounts by
// name, in the container's mount namespace, where no descriptor of ours can be mounted; so who may write to a directory
// above can put a link there after Parse looked. The look is before the container's program runs.
func (h *Rootfs) Created(_ context.Context, _ process.RuntimeContainer, init process.Handle) error {
	return checkBinds(init, h.binds)
}

// Removed implements process.CreateHook.
func (*Rootfs) Removed() error { return nil }

// checkBinds tells whether a container sees what is at each source without a
// symbolic link on the way. An init that is dead sees nothing.
func checkBinds(init process.Handle, binds []specs.Mount) error {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", init.Pid()), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("root directory of the container: %w", err)
	}
	defer func() { _ = unix.Close(root) }() // opened for its name only
	for _, m := range binds {
		want, err := identify(unix.AT_FDCWD, m.Source, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return fmt.Errorf("host-rootfs: %q of the host changed while it was mounted: %w: %w", m.Source, err, errdefs.ErrFailedPrecondition)
		}
		got, err := identify(root, m.Destination, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
		if err != nil {
			return fmt.Errorf("host-rootfs: look at %q in the container: %w: %w", m.Destination, err, errdefs.ErrFailedPrecondition)
		}
		if got != want {
			return fmt.Errorf("host-rootfs: what is at %q in the container is not %q of the host: that was replaced while it was mounted, or something else is mounted there: %w", m.Destination, m.Source, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// inode names a file, for as long as there is one.
type inode struct{ dev, ino uint64 }

func identify(dir int, path string, resolve uint64) (inode, error) {
	fd, err := openat2(dir, path, unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if err != nil {
		return inode{}, err
	}
	defer func() { _ = unix.Close(fd) }() // opened for its name only
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return inode{}, err
	}
	return inode{dev: s.Dev, ino: s.Ino}, nil
}

// openat2 is openat2(2), again while something on the machine is renamed or
// mounted in the middle of a path with dots.
func openat2(dir int, path string, how unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(dir, path, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// seenBinds are those of mounts that spec puts nothing else upon.
func seenBinds(spec *specs.Spec, mounts []specs.Mount) []specs.Mount {
	return slices.DeleteFunc(mounts, func(m specs.Mount) bool {
		covered := slices.ContainsFunc(spec.Mounts, func(other specs.Mount) bool {
			return filepath.Clean(other.Destination) == m.Destination
		})
		masked := slices.ContainsFunc(spec.Linux.MaskedPaths, func(path string) bool {
			path = filepath.Clean(path)
			return path == m.Destination || below(m.Destination, path)
		})
		return m.Type != "bind" || covered || masked
	})
}

// checkAbove refuses a path that somebody other than root can lead elsewhere:
// the layers of an overlay are found by name, and what an overlay is of cannot
// be seen afterwards.
func checkAbove(path string) error {
	var dir unix.Stat_t
	for name := range parents(path + "/") {
		name = cmp.Or(name, "/")
		var at unix.Stat_t
		if err := unix.Lstat(name, &at); err != nil {
			return &os.PathError{Op: "stat", Path: name, Err: err}
		}
		if name != "/" && !rootsAlone(dir, at) {
			return fmt.Errorf("must lie in directories that only root may write to, since something is masked in it; %q is not such: %w", filepath.Dir(name), errdefs.ErrInvalidArgument)
		}
		dir = at
	}
	return nil
}

// rootsAlone tells whether nobody but root can put something else in the place
// of at, which is no link and lies in dir.
func rootsAlone(dir, at unix.Stat_t) bool {
	const others = 0o022
	kept := dir.Mode&others == 0 || dir.Mode&unix.S_ISVTX != 0 && at.Uid == 0
	return dir.Uid == 0 && kept && at.Mode&unix.S_IFMT != unix.S_IFLNK
}
