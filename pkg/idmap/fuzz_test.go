// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package idmap

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The mappings are so small that each id can be looked at.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{0, 100, 5, 5, 105, 5})
	f.Add([]byte{0, 100, 5, 4, 200, 5})
	f.Add([]byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, from []byte) {
		var list mappings
		var inside, outside [2 * 256]bool
		valid := true
		for ; len(from) >= 3 && len(list) < 8; from = from[3:] {
			m := specs.LinuxIDMapping{ContainerID: uint32(from[0]), HostID: uint32(from[1]), Size: uint32(from[2])}
			list = append(list, m)
			valid = valid && m.Size > 0
			for i := range m.Size {
				valid = valid && !inside[m.ContainerID+i] && !outside[m.HostID+i]
				inside[m.ContainerID+i], outside[m.HostID+i] = true, true
			}
		}
		err := Check("f", list)
		if (err == nil) != valid || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("Check(%v) = %v, valid: %t", list, err, valid)
		}
		if root := hostRoot(list); valid && inside[0] && !outside[root] {
			t.Errorf("root of %v = %d, which is not mapped", list, root)
		}
	})
}
