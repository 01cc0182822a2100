// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestKernelParameters_NameTheHierarchy(t *testing.T) {
	for _, tt := range []struct {
		name         string
		v1           bool
		want, absent string
	}{
		{"v2", false, "systemd.unified_cgroup_hierarchy=1", "systemd.unified_cgroup_hierarchy=0"},
		{"v1", true, "systemd.unified_cgroup_hierarchy=0", "cgroup_no_v1=all"},
	} {
		c := Default()
		c.Systemd, c.V1 = true, tt.v1
		if got := strings.Fields(kernelParameters(c)); !slices.Contains(got, tt.want) ||
			slices.Contains(got, tt.absent) {
			t.Errorf("kernel parameters for %s = %q, want %q and not %q among them", tt.name, got, tt.want, tt.absent)
		}
	}
}

func TestCheck_RefusesWhatDoesNotBoot(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(c *Config)
		class func(error) bool
		want  string
	}{
		{"another processor and the host's root", func(c *Config) { c.Arch = "arm64" }, errdefs.IsInvalidArgument, "root"},
		{"an unknown processor", func(c *Config) { c.Arch = "mips" }, errdefs.IsNotImplemented, "mips"},
		{"cgroup v1 without systemd", func(c *Config) { c.V1 = true }, errdefs.IsInvalidArgument, "systemd"},
		{
			"systemd that the root lacks", func(c *Config) { c.Systemd, c.Root = true, t.TempDir() },
			errdefs.IsNotFound, systemd,
		},
	} {
		c := Default()
		c.Arch = "amd64"
		tt.spoil(&c)
		if err := Check(c); !tt.class(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Check of %s = %v, want an error of its class with %q", tt.name, err, tt.want)
		}
	}
}
