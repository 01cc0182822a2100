// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// lastID is the user and the group of a pod's process, without a user namespace: that of the pause image.
const lastID = 65535

// last is the highest id of the first mapping: one that is mapped, and most likely nobody's.
func last(list []specs.LinuxIDMapping) uint32 { return list[0].ContainerID + list[0].Size - 1 }

// checkProcess refuses a process in a user namespace with other mappings. The kernel shows them as they were written.
func (u *UserNamespace) checkProcess(pid int) error {
	for _, m := range []struct {
		name string
		want []specs.LinuxIDMapping
	}{{"uid_map", u.UIDs}, {"gid_map", u.GIDs}} {
		path := fmt.Sprintf("/proc/%d/%s", pid, m.name)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var got []specs.LinuxIDMapping
		for line := range strings.Lines(string(data)) {
			var l specs.LinuxIDMapping
			if _, err := fmt.Sscan(line, &l.ContainerID, &l.HostID, &l.Size); err != nil {
				return fmt.Errorf("%s: line %q: %w", path, line, err)
			}
			got = append(got, l)
		}
		if byID := func(a, b specs.LinuxIDMapping) int { return cmp.Compare(a.ContainerID, b.ContainerID) }; !slices.Equal(
			slices.SortedFunc(slices.Values(got), byID), slices.SortedFunc(slices.Values(m.want), byID)) {
			return fmt.Errorf("userns_options: the owner of the network namespace has the %s %v, not %v: %w", m.name, got, m.want, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
