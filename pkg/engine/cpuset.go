// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups/systemd"
)

// KeepCPUSet implements process.Runtime. The properties are those of
// systemd.resource-control(5), which systemd has since version 244.
func (c *container) KeepCPUSet(ctx context.Context, cpus, mems string) error {
	if !c.config.SystemdCgroup {
		return nil
	}
	var properties []dbus.Property
	for _, p := range []struct{ name, list string }{{"AllowedCPUs", cpus}, {"AllowedMemoryNodes", mems}} {
		if p.list == "" {
			continue
		}
		bits, err := systemd.RangeToBits(p.list)
		if err != nil {
			return fmt.Errorf("%s %q: must be numbers and ranges of them: %w: %w", p.name, p.list, err, errdefs.ErrInvalidArgument)
		}
		properties = append(properties, dbus.Property{Name: p.name, Value: godbus.MakeVariant(bits)})
	}
	unit := unitName(c.lc.Config().Cgroups) // which takes no lock of libcontainer's
	return askSystemd(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		if err := conn.SetUnitPropertiesContext(ctx, unit, true, properties...); err != nil {
			return fmt.Errorf("set properties of %s: %w", unit, err)
		}
		return nil
	})
}
