// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/idmap"
)

// check refuses what the kernel would refuse, and mappings without a root.
func (u *UserNamespace) check() error {
	if u == nil {
		return nil
	}
	if len(u.UIDs) == 0 || len(u.GIDs) == 0 {
		return fmt.Errorf("userns_options: must have mappings of users and of groups, has %d and %d: %w",
			len(u.UIDs), len(u.GIDs), errdefs.ErrInvalidArgument)
	}
	for _, m := range []struct {
		field, id string
		list      []specs.LinuxIDMapping
	}{{"userns_options.uids", "uid 0", u.UIDs}, {"userns_options.gids", "gid 0", u.GIDs}} {
		if err := idmap.Check(m.field, m.list); err != nil {
			return err
		}
		// The root of the pod owns the pod's files, and no container can be made without one.
		if !slices.ContainsFunc(m.list, func(l specs.LinuxIDMapping) bool { return l.ContainerID == 0 }) {
			return fmt.Errorf("%s %v: must map %s: %w", m.field, m.list, m.id, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// root is who the root of u is on the host: the host's root if u is nil.
func (u *UserNamespace) root() idmap.Owner {
	if u == nil {
		return idmap.Owner{}
	}
	return idmap.Root(u.UIDs, u.GIDs)
}

// pauseID is the user and the group of a pod's process without a user namespace: that of the pause image.
const pauseID = 65535

// lastID is the highest id of the first mapping: one that is mapped, and most likely nobody's.
func lastID(list []specs.LinuxIDMapping) uint32 { return list[0].ContainerID + list[0].Size - 1 }

// checkProcess refuses a process in a user namespace with other mappings. The kernel shows them as they were written.
func (u *UserNamespace) checkProcess(pid int) error {
	for _, m := range []struct {
		name string
		want []specs.LinuxIDMapping
	}{{"uid_map", u.UIDs}, {"gid_map", u.GIDs}} {
		list, err := user.ParseIDMapFile(fmt.Sprintf("/proc/%d/%s", pid, m.name))
		if err != nil {
			return err
		}
		var got []specs.LinuxIDMapping
		for _, l := range list {
			got = append(got, specs.LinuxIDMapping{ContainerID: uint32(l.ID), HostID: uint32(l.ParentID), Size: uint32(l.Count)})
		}
		if !slices.Equal(byContainerID(got), byContainerID(m.want)) {
			return fmt.Errorf("userns_options: the owner of the network namespace has the %s %v, not %v: %w",
				m.name, got, m.want, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func byContainerID(list []specs.LinuxIDMapping) []specs.LinuxIDMapping {
	return slices.SortedFunc(slices.Values(list), func(a, b specs.LinuxIDMapping) int {
		return cmp.Compare(a.ContainerID, b.ContainerID)
	})
}
