// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package criu

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/runc/libcontainer/configs"
)

// CheckMounts refuses links in a container's root file system because of which CRIU would mount something other than
// config.json says. libcontainer tells CRIU what to bind by the place of a mount once links are followed, and CRIU
// keeps that as text, mnt[PLACE]:SOURCE: a place with "]:" in it ends early, and the rest becomes the source
// (CVE-2026-119101). For two mounts at one place, CRIU takes the source of the first.
//
// libcontainer follows the links again. At a restore nobody can replace them meanwhile, since nothing runs there yet.
func CheckMounts(config *configs.Config) error {
	sources := map[string]string{} // by place
	for _, m := range config.Mounts {
		if m.Device != "bind" && m.Device != "cgroup" {
			continue
		}
		destination := strings.TrimPrefix(m.Destination, config.Rootfs)
		path, err := securejoin.SecureJoin(config.Rootfs, destination)
		if err != nil {
			return fmt.Errorf("mount at %q: %w", m.Destination, err)
		}
		place := strings.TrimPrefix(path, config.Rootfs)
		if strings.Contains(place, "]:") {
			return fmt.Errorf("mount at %q: is at %q once links are followed, which CRIU cannot tell from its source: %w",
				m.Destination, place, errdefs.ErrFailedPrecondition)
		}
		if other, ok := sources[place]; ok && other != m.Source {
			return fmt.Errorf("mount at %q: is at %q once links are followed, as that of %q, from which CRIU cannot tell it: %w",
				m.Destination, place, other, errdefs.ErrFailedPrecondition)
		}
		sources[place] = m.Source
	}
	for _, d := range config.Devices {
		path, err := securejoin.SecureJoin(config.Rootfs, d.Path)
		if err != nil {
			return fmt.Errorf("device %q: %w", d.Path, err)
		}
		if place := strings.TrimPrefix(path, config.Rootfs); strings.Contains(place, "]:") {
			return fmt.Errorf("device %q: is at %q once links are followed, which CRIU cannot tell from its source: %w",
				d.Path, place, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}
