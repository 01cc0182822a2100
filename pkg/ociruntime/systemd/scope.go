// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
)

// Scope is the cgroup manager of a scope. Whenever a property of a unit is set, and when systemd is reloaded, systemd
// writes every control file that it has a property for. libcontainer sets only some of these properties, so that
// systemd would undo what libcontainer writes to the files.
type Scope struct {
	cgroups.Manager
	config  *cgroups.Cgroup
	unified bool          // cgroup v2
	lock    chan struct{} // holds one while the unit is changed; unlike a mutex, waiting for it can be canceled
}

// NewScope wraps libcontainer's manager m of the scope that config names.
func NewScope(m cgroups.Manager, config *cgroups.Cgroup) *Scope {
	return &Scope{Manager: m, config: config, unified: cgroups.IsCgroup2UnifiedMode(), lock: make(chan struct{}, 1)}
}

// Set implements cgroups.Manager. If systemd is silent, nothing is written.
func (s *Scope) Set(r *cgroups.Resources) error {
	keep := slices.DeleteFunc(slices.Clone(keptFiles), func(file string) bool { _, sets := r.Unified[file]; return sets })
	return s.change(context.Background(), keep, func(ctx context.Context) error {
		if err := s.setUnit(ctx, properties(r, s.unified)...); err != nil {
			return err
		}
		defer Connected()()
		return s.Manager.Set(r)
	})
}

// cpusetProperties are those of systemd.resource-control(5), since systemd 244, by the files of cgroup v2.
var cpusetProperties = map[string]string{"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}

// SetCPUSet sets the unit's properties of CPUs and memory nodes, and writes no file itself. An empty list changes
// nothing.
func (s *Scope) SetCPUSet(ctx context.Context, cpus, mems string) error {
	var set []dbus.Property
	for _, f := range []struct{ file, list string }{{"cpuset.cpus", cpus}, {"cpuset.mems", mems}} {
		if f.list == "" {
			continue
		}
		name := cpusetProperties[f.file]
		bits, err := systemd.RangeToBits(f.list)
		if err != nil {
			return fmt.Errorf("%s %q: must be numbers and ranges of them: %w: %w", name, f.list, err, errdefs.ErrInvalidArgument)
		}
		set = append(set, dbus.Property{Name: name, Value: godbus.MakeVariant(bits)})
	}
	return s.change(ctx, keptFiles, func(ctx context.Context) error { return s.setUnit(ctx, set...) })
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

// keptFiles are control files that systemd rewrites and libcontainer sets no property for: memory.oom.group has no
// property before systemd 253 and a read-only one since; systemd has properties for zswap since 253.
var keptFiles = []string{"memory.oom.group", "memory.zswap.max", "memory.zswap.writeback"}

// change calls set while nobody else changes the unit. Afterwards it restores some files, even if set fails.
func (s *Scope) change(ctx context.Context, keep []string, set func(context.Context) error) error {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !s.unified {
		return set(ctx)
	}
	before := map[string]string{}
	for _, file := range keep {
		if text, err := cgroups.ReadFile(s.Path(""), file); err == nil { // else the cgroup has no such file
			before[file] = text
		}
	}
	err := set(ctx)
	for file, text := range before {
		if now, readErr := cgroups.ReadFile(s.Path(""), file); readErr == nil && now == text {
			continue
		}
		if restoreErr := cgroups.WriteFile(s.Path(""), file, text); !errors.Is(restoreErr, fs.ErrNotExist) {
			err = errors.Join(err, restoreErr)
		}
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
	if weight := ioWeight(r); weight != 0 {
		add("IOWeight", weight)
	}
	if _, own := r.Unified["memory.swap.max"]; !own && r.Memory > 0 && r.MemorySwap == r.Memory {
		add("MemorySwapMax", 0)
	}
	return all
}

// ioWeight returns the requested default of io.weight, or 0 for none. systemd leaves the weights of single devices,
// which stand in lines of their own, "MAJ:MIN WEIGHT", as they are.
func ioWeight(r *cgroups.Resources) uint64 {
	text, ok := r.Unified["io.weight"]
	if !ok {
		return cgroups.ConvertBlkIOToIOWeightValue(r.BlkioWeight)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	weight, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(line, "default ")), 10, 64)
	if err != nil {
		return 0
	}
	return weight
}
