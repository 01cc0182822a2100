// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
)

// Scope is the cgroup manager of a scope. Whenever a property of a unit is set, and when systemd is reloaded, systemd
// writes every control file that it has a property for, and libcontainer sets only some of these properties.
type Scope struct {
	cgroups.Manager
	config *cgroups.Cgroup
	mu     sync.Mutex // held while the unit is changed
}

// NewScope wraps libcontainer's manager m of the scope that config names.
func NewScope(m cgroups.Manager, config *cgroups.Cgroup) *Scope {
	return &Scope{Manager: m, config: config}
}

// Set implements cgroups.Manager. If systemd is silent, nothing is written.
func (s *Scope) Set(r *cgroups.Resources) error {
	return s.change(func() error {
		if err := s.setUnit(context.Background(), properties(r, cgroups.IsCgroup2UnifiedMode())...); err != nil {
			return err
		}
		defer Connected()()
		return s.Manager.Set(r)
	}, r.Unified[oomGroup])
}

// SetCPUSet sets the unit's properties of CPUs and memory nodes, which are systemd.resource-control(5)'s since systemd
// 244, and writes no file itself. An empty list changes nothing.
func (s *Scope) SetCPUSet(ctx context.Context, cpus, mems string) error {
	var set []dbus.Property
	for _, p := range []struct{ name, list string }{{"AllowedCPUs", cpus}, {"AllowedMemoryNodes", mems}} {
		if p.list == "" {
			continue
		}
		bits, err := systemd.RangeToBits(p.list)
		if err != nil {
			return fmt.Errorf("%s %q: %w: %w", p.name, p.list, err, errdefs.ErrInvalidArgument)
		}
		set = append(set, dbus.Property{Name: p.name, Value: godbus.MakeVariant(bits)})
	}
	return s.change(func() error { return s.setUnit(ctx, set...) }, "")
}

// setUnit sets properties of the unit, if any, after systemd answered: a silent one might act on them later.
func (s *Scope) setUnit(ctx context.Context, set ...dbus.Property) error {
	return ask(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		if _, err := conn.GetManagerProperty("Version"); err != nil || len(set) == 0 {
			return err
		}
		unit := unitName(s.config)
		if err := conn.SetUnitPropertiesContext(ctx, unit, true, set...); err != nil {
			return fmt.Errorf("cannot set properties of %s: %w", unit, err)
		}
		return nil
	})
}

// oomGroup is a file of cgroup v2 that systemd writes whenever it writes others. Before systemd 253 it has no property,
// since then one that cannot be changed.
const oomGroup = "memory.oom.group"

// change calls set while nobody else changes the unit. Afterwards oomGroup has the value asked for, or the former one.
func (s *Scope) change(set func() error, asked string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	group, readErr := cgroups.ReadFile(s.Path(""), oomGroup)
	err := set()
	if readErr != nil { // cgroup v1, which has no such file
		return err
	}
	if keepErr := cgroups.WriteFile(s.Path(""), oomGroup, cmp.Or(asked, group)); !errors.Is(keepErr, fs.ErrNotExist) {
		err = errors.Join(err, keepErr)
	}
	return err
}

// properties are the properties of cgroup v2 (systemd.resource-control(5)) that libcontainer leaves out: the weight of
// block IO, and "no swap" unless r.Unified says how much. cgroup v1 has none of them.
func properties(r *cgroups.Resources, unified bool) []dbus.Property {
	if !unified {
		return nil
	}
	var all []dbus.Property
	add := func(name string, value uint64) {
		all = append(all, dbus.Property{Name: name, Value: godbus.MakeVariant(value)})
	}
	if weight := cgroups.ConvertBlkIOToIOWeightValue(r.BlkioWeight); weight != 0 {
		add("IOWeight", weight)
	}
	if _, own := r.Unified["memory.swap.max"]; !own && r.Memory > 0 && r.MemorySwap == r.Memory {
		add("MemorySwapMax", 0)
	}
	return all
}
