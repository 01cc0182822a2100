// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package idmap reads the id mappings of user namespaces (user_namespaces(7)).
package idmap

import (
	"fmt"
	"slices"

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
	i := slices.IndexFunc(list, func(m specs.LinuxIDMapping) bool { return m.ContainerID == 0 && m.Size > 0 })
	if i < 0 {
		return 0
	}
	return int(list[i].HostID)
}

// Check refuses mappings that the kernel would refuse: it names neither the file nor the lines.
func Check(field string, list []specs.LinuxIDMapping) error {
	const most = 340 // UID_GID_MAP_MAX_EXTENTS
	if len(list) > most {
		return fmt.Errorf("%s: has %d mappings: can have %d: %w", field, len(list), most, errdefs.ErrInvalidArgument)
	}
	for i, m := range list {
		overlaps := func(o specs.LinuxIDMapping) bool {
			return overlap(m.ContainerID, m.Size, o.ContainerID, o.Size) || overlap(m.HostID, m.Size, o.HostID, o.Size)
		}
		if m.Size == 0 || slices.ContainsFunc(list[:i], overlaps) {
			return fmt.Errorf("%s[%d] containerID %d hostID %d size %d: must map an id, and none twice: %w",
				field, i, m.ContainerID, m.HostID, m.Size, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func overlap(a, sizeA, b, sizeB uint32) bool {
	return uint64(a) < uint64(b)+uint64(sizeB) && uint64(b) < uint64(a)+uint64(sizeA)
}
