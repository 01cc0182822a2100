// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
)

func TestACPUSetIsToldToSystemdAlone(t *testing.T) {
	silentBus(t)
	if err := new(container).KeepCPUSet(soon(t, errSystemdSilent), "0-1", "0"); err != nil {
		t.Errorf("KeepCPUSet of a cgroup that is not systemd's = %v, want nil", err)
	}
}

func TestACPUSetThatIsNoneIsNotToldToSystemd(t *testing.T) {
	silentBus(t)
	for _, tt := range []struct{ cpus, mems, want string }{
		{"many", "", `AllowedCPUs "many": must be`},
		{"0", "1-0", `AllowedMemoryNodes "1-0": must be`},
	} {
		c := &container{manager: newScope(nil, &cgroups.Cgroup{})}
		err := c.KeepCPUSet(soon(t, errSystemdSilent), tt.cpus, tt.mems)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("KeepCPUSet(%q, %q) = %v, want an invalid argument with %q", tt.cpus, tt.mems, err, tt.want)
		}
	}
}
