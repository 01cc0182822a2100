// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Unsupported returns why no launcher can start the process; "" if one can.
func (c *Process) Unsupported() (reason string) {
	if c.Filter != nil && c.Filter.BlocksStart {
		return "a seccomp filter that forbids what each process does before its program"
	}
	return ""
}

// Unsupported returns why no launcher can make the container; "" if one can.
func (i *Container) Unsupported() (reason string) {
	switch {
	case i.Process.Unsupported() != "":
		return i.Process.Unsupported()
	case i.Reaped && i.Filter != nil && i.Filter.BlocksInit:
		return "a seccomp filter that forbids what an init does"
	case !HasMountSetattr():
		return "no mount_setattr, before Linux 5.12"
	}
	for _, ns := range i.Namespaces {
		switch {
		case ns.Type == unix.CLONE_NEWUSER:
			return "user namespace"
		case ns.Path != "" && ns.Type&(unix.CLONE_NEWTIME|unix.CLONE_NEWNS|unix.CLONE_NEWPID) != 0:
			return "PID, time or mount namespace of another"
		}
	}
	for _, m := range i.Mounts {
		if reason := i.unsupportedMount(m); reason != "" {
			return reason
		}
	}
	return ""
}

func (i *Container) unsupportedMount(m *Mount) (reason string) {
	const known = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NODIRATIME |
		unix.MS_NOSYMFOLLOW | unix.MS_SYNCHRONOUS | unix.MS_DIRSYNC | unix.MS_LAZYTIME | unix.MS_NOATIME |
		unix.MS_RELATIME | unix.MS_STRICTATIME | unix.MS_BIND | unix.MS_REC | unix.MS_SILENT
	filesystems := []string{Bind, "proc", "sysfs", "mqueue", "tmpfs", "devpts", "cgroup", "cgroup2"}
	destination := path.Clean("/" + m.Destination)
	switch {
	case !slices.Contains(filesystems, m.Type) || (m.Type == Bind) != (m.Flags&unix.MS_BIND != 0):
		return fmt.Sprintf("mount of type %.100q", m.Type)
	case m.Flags&^known != 0:
		return fmt.Sprintf("mount flags %#x", m.Flags)
	case len(m.Data) >= os.Getpagesize(): // each option takes steps; mount(2) reads no more
		return fmt.Sprintf("mount data of %d bytes", len(m.Data))
	case m.Type == "tmpfs" && !strings.Contains(m.Data, "mode="):
		return "tmpfs with the mode of what it covers"
	case destination == "/proc" && m.Type != "proc", strings.HasPrefix(destination, "/proc/"):
		return "mount in /proc"
	case strings.HasPrefix(destination+"/", path.Clean(i.Root)+"/"):
		// libcontainer takes the path of the root file system for the root (internal/pathrs, LexicallyStripRoot).
		return "mount with the path of the root file system"
	}
	return ""
}

// HasMountSetattr reports whether the kernel has mount_setattr, which came with Linux 5.12.
var HasMountSetattr = sync.OnceValue(func() bool {
	return !errors.Is(unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}), unix.ENOSYS)
})
