// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// checkMappings refuses mappings of a user namespace that share an id on either
// side, as the kernel would (user_namespaces(7)), which names neither the file
// nor the lines.
func checkMappings(field string, list []specs.LinuxIDMapping) error {
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
