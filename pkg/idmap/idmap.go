// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package idmap reads the id mappings of user namespaces (user_namespaces(7)).
package idmap

import (
	"slices"

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
