// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package idmap reads the id mappings of user namespaces (user_namespaces(7)).
package idmap

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Mappings are those of a user namespace.
type Mappings struct{ UIDs, GIDs []specs.LinuxIDMapping }

// Owner is a user and a group of the host.
type Owner struct{ UID, GID int }

// Root returns who the root of a user namespace is on the host. It is the host's root if an id is not mapped, and so
// also without mappings.
func Root(uids, gids []specs.LinuxIDMapping) Owner {
	return Owner{UID: hostRoot(uids), GID: hostRoot(gids)}
}

func hostRoot(list []specs.LinuxIDMapping) int {
	for _, m := range list {
		if m.ContainerID == 0 && m.Size > 0 {
			return int(m.HostID)
		}
	}
	return 0
}

// Check refuses mappings that share an id on either side, as the kernel would, whose error names neither the file nor
// the lines.
func Check(field string, list []specs.LinuxIDMapping) error {
	const most = 340 // UID_GID_MAP_MAX_EXTENTS
	if len(list) > most {
		return fmt.Errorf("%s: has %d mappings: can have %d: %w", field, len(list), most, errdefs.ErrInvalidArgument)
	}
	for i, m := range list {
		if m.Size == 0 {
			return fmt.Errorf("%s[%d].size 0: must be at least 1: %w", field, i, errdefs.ErrInvalidArgument)
		}
		for j, other := range list[:i] {
			if overlap(m.ContainerID, m.Size, other.ContainerID, other.Size) {
				return fmt.Errorf("%s[%d] containerID %d size %d: overlaps %s[%d] containerID %d size %d: %w",
					field, i, m.ContainerID, m.Size, field, j, other.ContainerID, other.Size, errdefs.ErrInvalidArgument)
			}
			if overlap(m.HostID, m.Size, other.HostID, other.Size) {
				return fmt.Errorf("%s[%d] hostID %d size %d: overlaps %s[%d] hostID %d size %d: %w",
					field, i, m.HostID, m.Size, field, j, other.HostID, other.Size, errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

func overlap(a, sizeA, b, sizeB uint32) bool {
	return uint64(a) < uint64(b)+uint64(sizeB) && uint64(b) < uint64(a)+uint64(sizeA)
}
