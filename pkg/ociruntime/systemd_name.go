// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"

	"sandbox.internal/shim/pkg/process"
)

// unitForm and unitLimit are those of systemd.unit(5), for a unit that is no
// template: with @ in the name it would be an instance of one.
var unitForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+$`) })

const unitLimit = 255

// checkScopeForm refuses a cgroupsPath that is not slice:prefix:name where the
// driver is systemd's. Without one libcontainer makes up a name.
func checkScopeForm(c process.Config) error {
	cgroupsPath := c.Spec.Linux.CgroupsPath
	if c.SystemdCgroup && cgroupsPath != "" && strings.Count(cgroupsPath, ":") != 2 {
		return fmt.Errorf("config.json: linux.cgroupsPath %q: must be slice:prefix:name for the systemd cgroup driver: %w", cgroupsPath, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkScopeName refuses names that systemd would refuse.
func checkScopeName(cgroupsPath string, c *cgroups.Cgroup) error {
	refuse := func(what, name, want string) error {
		return fmt.Errorf("config.json: linux.cgroupsPath %q: %s %q %s: %w", cgroupsPath, what, name, want, errdefs.ErrInvalidArgument)
	}
	if slice := c.Parent; slice != "" { // else it is system.slice
		if _, err := systemd.ExpandSlice(slice); err != nil || !unitForm().MatchString(slice) || len(slice) > unitLimit {
			return refuse("slice", slice, "must be the name of a slice, such as a-b.slice")
		}
	}
	switch unit := unitName(c); {
	case c.Name == "":
		return refuse("name", c.Name, "must not be empty")
	case strings.HasSuffix(c.Name, ".slice"):
		return refuse("name", c.Name, "must not be that of a slice")
	case !unitForm().MatchString(unit) || len(unit) > unitLimit:
		return refuse("unit", unit, fmt.Sprintf(`must be at most %d letters, digits and :_.\-`, unitLimit))
	}
	return nil
}
