// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containerd/errdefs"
)

// need is a program that Run calls, or that the guest does, and Debian's package of it.
type need struct{ program, pkg string }

func needs(c Config) []need {
	list := []need{
		{machines()[c.Arch].qemu, machines()[c.Arch].pkg},
		{"busybox", "busybox-static"},
		{"xz", "xz-utils"},
		{"depmod", "kmod"},
	}
	if c.Disk != "" {
		list = append(list, need{"mkfs.ext4", "e2fsprogs"})
	}
	if c.Systemd && c.Root == "" {
		list = append(list, need{systemd, "systemd"}, need{"dbus-daemon", "dbus"})
	}
	return list
}

// systemd is where Debian has it, outside of PATH.
const systemd = "/lib/systemd/systemd"

// Check returns an error that names the packages which a machine of this configuration lacks.
func Check(c Config) error {
	if _, ok := machines()[c.Arch]; !ok {
		return fmt.Errorf("guest with processor %q: %w", c.Arch, errdefs.ErrNotImplemented)
	}
	if c.Root == "" && c.Arch != runtime.GOARCH {
		return fmt.Errorf("guest with processor %q: needs a root of its own: %w", c.Arch, errdefs.ErrInvalidArgument)
	}
	if c.Systemd && c.Root != "" {
		if _, err := os.Stat(filepath.Join(c.Root, systemd)); err != nil {
			return fmt.Errorf("guest with systemd: %w: %w", err, errdefs.ErrNotFound)
		}
	}
	if c.V1 && !c.Systemd {
		return fmt.Errorf("guest with cgroup v1: only systemd mounts it: %w", errdefs.ErrInvalidArgument)
	}
	var missing []string
	for _, n := range needs(c) {
		if _, err := lookPath(n.program); err != nil {
			missing = append(missing, n.pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("programs are missing: apt-get install --no-install-recommends %s: %w",
		strings.Join(missing, " "), errdefs.ErrNotFound)
}

// lookPath also looks where only root's PATH does.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if err == nil {
			break
		}
		name := filepath.Join(dir, program)
		if _, e := os.Stat(name); e == nil {
			path, err = name, nil
		}
	}
	return path, err
}
