// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups/systemd"
)

// cpusetProperties are those of systemd.resource-control(5), which systemd has
// since version 244, by the files of cgroup v2.
var cpusetProperties = map[string]string{"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}

// KeepCPUSet implements process.RuntimeContainer.
func (c *container) KeepCPUSet(ctx context.Context, cpus, mems string) error {
	s, ok := c.manager.(*scope)
	if !ok {
		return nil
	}
	var properties []dbus.Property
	for _, f := range []struct{ file, list string }{{"cpuset.cpus", cpus}, {"cpuset.mems", mems}} {
		if f.list == "" {
			continue
		}
		name := cpusetProperties[f.file]
		bits, err := systemd.RangeToBits(f.list)
		if err != nil {
			return fmt.Errorf("%s %q: must be numbers and ranges of them: %w: %w", name, f.list, err, errdefs.ErrInvalidArgument)
		}
		properties = append(properties, dbus.Property{Name: name, Value: godbus.MakeVariant(bits)})
	}
	return s.setProperties(ctx, properties...)
}
