// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package removal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
	"sandbox.internal/shim/pkg/unixfile"
)

// mounts unmounts what is mounted in a bundle that nobody has, and removes its directories, which are then empty.
func (r Remover) mounts(l leftover.Leftover) error {
	if n := l.Target.Processes; n > 0 {
		return fmt.Errorf("%d processes of the container live, which may use it", n)
	}
	parent, dir, err := openBelow(r.State, l.Path)
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // opened for reading
	defer dir.Close()    //nolint:errcheck // likewise
	if err := unmountAll(l.Target.Mounts); err != nil {
		return err
	}
	for _, m := range l.Target.Mounts {
		if filepath.Dir(m.Mountpoint) == l.Path {
			_ = unlink(dir, filepath.Base(m.Mountpoint), unix.AT_REMOVEDIR) // what is in it is not the mount's
		}
	}
	_ = unlink(parent, filepath.Base(l.Path), unix.AT_REMOVEDIR) // likewise
	return nil
}

// unmountAll unmounts the last first.
func unmountAll(mounts []*mountinfo.Info) error {
	for _, m := range slices.Backward(mounts) {
		if err := unmount(m); err != nil {
			return err
		}
	}
	return nil
}

// unmount unmounts what was seen in the table of mounts, and nothing else that is at the same path by now. A mount that
// somebody uses stays.
func unmount(m *mountinfo.Info) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unixfile.Openat2(unix.AT_FDCWD, filepath.Dir(m.Mountpoint), &how)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
	}
	parent := os.NewFile(uintptr(fd), filepath.Dir(m.Mountpoint))
	defer parent.Close() //nolint:errcheck // opened as a path
	name := filepath.Base(m.Mountpoint)
	var st unix.Statx_t
	if err := unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st); err != nil {
		return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 || int(st.Mnt_id) != m.ID {
		return fmt.Errorf("unmount %s: something else is mounted there by now", m.Mountpoint)
	}
	err = unix.Unmount(inFD(parent, name), unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: a process uses it: %w", m.Mountpoint, err)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
	}
	return nil
}
