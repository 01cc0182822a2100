// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	config  *cgroups.Cgroup
	unified bool          // cgroup v2
	turn    chan struct{} // full while the unit is changed
}

func newScope(m cgroups.Manager, config *cgroups.Cgroup) *scope {
	return &scope{Manager: m, config: config, unified: cgroups.IsCgroup2UnifiedMode(), turn: make(chan struct{}, 1)}
}

// Set implements cgroups.Manager. Nothing is written when systemd is silent.
func (s *scope) Set(r *cgroups.Resources) error {
	_, asked := r.Unified[oomGroup]
	return s.change(context.Background(), !asked, func(ctx context.Context) error {
		if err := s.tell(ctx, scopeProperties(r, s.unified)...); err != nil {
			return err
		}
		return s.Manager.Set(r)
	})
}

// setProperties sets properties of the unit and writes nothing itself.
func (s *scope) setProperties(ctx context.Context, properties ...dbus.Property) error {
	return s.change(ctx, true, func(ctx context.Context) error { return s.tell(ctx, properties...) })
}

// tell sets properties, if any, of a unit whose manager answers.
func (s *scope) tell(ctx context.Context, properties ...dbus.Property) error {
	return askSystemd(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		// Who is silent might take later what it was sent.
		if _, err := conn.GetManagerProperty("Version"); err != nil || len(properties) == 0 {
			return err
		}
		unit := unitName(s.config)
		if err := conn.SetUnitPropertiesContext(ctx, unit, true, properties...); err != nil {
			return fmt.Errorf("set properties of %s: %w", unit, err)
		}
		return nil
	})
}

// oomGroup is a file for which scopes have no property before systemd 253, and
// after that one that cannot be changed.
const oomGroup = "memory.oom.group"

// change lets set change the unit, one change at a time. With keep it puts back
// what oomGroup said, also when set fails.
func (s *scope) change(ctx context.Context, keep bool, set func(context.Context) error) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !keep || !s.unified {
		return set(ctx)
	}
	path := filepath.Join(s.Path(""), oomGroup)
	before, readErr := os.ReadFile(path)
	err := set(ctx)
	if readErr != nil { // the cgroup has no such file
		return err
	}
	if back := os.WriteFile(path, before, 0); back != nil && !errors.Is(back, fs.ErrNotExist) {
		err = errors.Join(err, back)
	}
	return err
}

// scopeProperties are the properties of cgroup v2 (systemd.resource-control(5))
// that libcontainer leaves out: the weight of block IO, and that there is no
// swap at all. There are none on v1.
func scopeProperties(r *cgroups.Resources, unified bool) []dbus.Property {
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
