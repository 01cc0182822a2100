// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
)

// scope is the cgroup manager of a scope. Whenever a property of a unit is set,
// and when it is reloaded, systemd writes all files that it has a property for.
// libcontainer leaves out some of these properties, so that systemd would undo
// what it writes to the files.
type scope struct {
	cgroups.Manager
	config *cgroups.Cgroup
}

// Set implements cgroups.Manager.
func (s *scope) Set(r *cgroups.Resources) error {
	err := askSystemd(context.Background(), func(ctx context.Context, conn *dbus.Conn) error {
		return conn.SetUnitPropertiesContext(ctx, unitName(s.config), true, scopeProperties(r)...)
	})
	if err != nil {
		return err
	}
	return s.keepOOMGroup(r, s.Manager.Set)
}

// keepOOMGroup puts back memory.oom.group, for which scopes have no property
// before systemd 253, and after that one that cannot be changed.
func (s *scope) keepOOMGroup(r *cgroups.Resources, set func(*cgroups.Resources) error) error {
	const file = "memory.oom.group"
	path := filepath.Join(s.Path(""), file)
	before, err := os.ReadFile(path)
	if err := set(r); err != nil {
		return err
	}
	if _, asked := r.Unified[file]; asked || err != nil { // err: the cgroup has no such file
		return nil
	}
	return os.WriteFile(path, before, 0)
}

// scopeProperties are the properties of cgroup v2 (systemd.resource-control(5))
// that libcontainer leaves out: the weight of block IO, and that there is no
// swap at all.
func scopeProperties(r *cgroups.Resources) []dbus.Property {
	var all []dbus.Property
	add := func(name string, value uint64) {
		all = append(all, dbus.Property{Name: name, Value: godbus.MakeVariant(value)})
	}
	if weight := ioWeight(r); weight != 0 {
		add("IOWeight", weight)
	}
	if r.Memory > 0 && r.MemorySwap == r.Memory {
		add("MemorySwapMax", 0)
	}
	return all
}

// ioWeight is what io.weight is to be, or 0 when it was not asked for.
func ioWeight(r *cgroups.Resources) uint64 {
	text, ok := r.Unified["io.weight"]
	if !ok {
		return cgroups.ConvertBlkIOToIOWeightValue(r.BlkioWeight)
	}
	// The weights of single devices, "MAJ:MIN WEIGHT", are in lines of their own, and systemd leaves them alone.
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	weight, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(line, "default ")), 10, 64)
	if err != nil {
		return 0
	}
	return weight
}
