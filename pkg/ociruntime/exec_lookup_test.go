// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// Without faccessat2(2) the mode, the owner and the group of a file say whether it is the program.
func TestLauncher_LooksForProgramsLikeLibcontainer(t *testing.T) {
	const uid, gid, further, other = 1000, 1001, 1002, 1003
	owners := [][2]int{{uid, other}, {other, gid}, {other, further}, {other, other}}
	modes := []os.FileMode{0o755, 0o655, 0o745, 0o754, 0o644}
	b := withProbe(t, func(c *process.Config) {
		filtered(t, deny("faccessat2"))(c)
		code, err := probe()
		must(t, err)
		for _, mode := range modes {
			for i, owner := range owners {
				file := filepath.Join(c.Rootfs, "bin", fmt.Sprintf("probe-%o-%d", mode, i))
				must(t, os.WriteFile(file, code, 0o600))
				must(t, os.Chown(file, owner[0], owner[1]))
				must(t, os.Chmod(file, mode))
			}
		}
	})
	override := []string{"CAP_DAC_OVERRIDE"}
	ran := map[bool]int{}
	for _, v := range []variant{
		{"root", nil},
		{"a user", func(p *specs.Process) {
			p.User = specs.User{UID: uid, GID: gid, AdditionalGids: []uint32{5, further}}
			p.Capabilities = &specs.LinuxCapabilities{}
		}},
		{"a user with a capability", func(p *specs.Process) {
			p.User = specs.User{UID: uid, GID: gid}
			p.Capabilities = &specs.LinuxCapabilities{Bounding: override, Effective: override, Permitted: override}
		}},
	} {
		for _, mode := range modes {
			for i := range owners {
				t.Run(fmt.Sprintf("%s, mode %o, owner %d", v.name, mode, i), func(t *testing.T) {
					on := *b
					on.t = t
					p := probed(v.change)
					p.Args[0] = fmt.Sprintf("/bin/probe-%o-%d", mode, i)
					ran[on.wantSame(p).Status == 7]++
				})
			}
		}
	}
	if ran[true] == 0 || ran[false] == 0 {
		t.Errorf("%d programs ran, %d did not, want some of both", ran[true], ran[false])
	}
}
