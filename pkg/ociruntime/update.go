// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/controlfile"
	"sandbox.internal/shim/pkg/ociruntime/ocierrors"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/resources"
)

// Update implements process.RuntimeContainer. When the kernel refuses a value, Update restores all former values.
func (c *container) Update(r *specs.LinuxResources) error {
	before := c.resources
	if before == nil {
		before = c.config.Spec.Linux.Resources
	}
	next, write := resources.Merge(before, r)
	if err := resources.Check(next, resources.ReadHost(next)); err != nil {
		return err
	}
	fields := resources.Fields(write)
	files, err := controlfile.Names(c.cgroup, fields)
	if err != nil {
		return err
	}
	if err := controlfile.CheckUsage(c.cgroup, write.Memory); err != nil {
		return err
	}
	snapshot, err := c.cgroup.Snapshot(files)
	if err != nil {
		return fmt.Errorf("linux.resources: %w", err)
	}
	if err = c.write(write); err == nil {
		c.resources = next
		return nil
	}
	err = ocierrors.Update(err, fields, c.cgroup)
	if errors.Is(err, systemd.ErrSilent) {
		return err // systemd is asked first, so nothing was written
	}
	if undo := c.restore(before, write, snapshot); undo != nil {
		err = errors.Join(err, fmt.Errorf("put the former values back: %w", undo))
	}
	return err
}

// write writes r. If r has device rules, those that every container has follow them.
func (c *container) write(r *specs.LinuxResources) error {
	converted, err := c.convert(r, len(r.Devices) > 0)
	if err != nil {
		return err
	}
	if err := c.manager.Set(converted); err != nil {
		return err
	}
	return controlfile.WriteRest(c.cgroup, r)
}

// convert translates r as libcontainer translates config.json, with or without device rules.
func (c *container) convert(r *specs.LinuxResources, setDevices bool) (*cgroups.Resources, error) {
	spec := &specs.Spec{Linux: &specs.Linux{Resources: r}}
	config, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{Spec: spec}, nil)
	if err != nil {
		return nil, fmt.Errorf("linux.resources: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	converted := config.Resources
	if converted.Memory == -1 && converted.MemorySwap == -1 {
		// Unlimited memory implies it. With 0, libcontainer skips swap if the kernel does not count it (cgroups v0.1.0
		// fs/memory.go, setMemoryAndSwap).
		converted.MemorySwap = 0
	}
	converted.SkipDevices = !setDevices
	if setDevices {
		converted.Devices = append(converted.Devices, c.defaultDevices()...)
	}
	return converted, nil
}

// defaultDevices returns the rules that specconv appended to those of config.json.
func (c *container) defaultDevices() []*devices.Rule {
	rules := c.lc.Config().Cgroups.Devices
	if r := c.config.Spec.Linux.Resources; r != nil {
		rules = rules[len(r.Devices):]
	}
	return rules
}

// restore undoes a partial write. It also restores the properties of a scope, since systemd writes them to the files
// again when it is reloaded.
func (c *container) restore(before, write *specs.LinuxResources, snapshot cgroup.Snapshot) error {
	var errs []error
	if len(write.Devices) > 0 {
		errs = append(errs, c.restoreDevices(before))
	}
	if s, ok := c.manager.(*systemd.Scope); ok {
		errs = append(errs, s.Restore(snapshot))
	}
	return errors.Join(append(errs, snapshot.Restore())...)
}

func (c *container) restoreDevices(before *specs.LinuxResources) error {
	var former specs.LinuxResources
	if before != nil {
		former.Devices = before.Devices
	}
	converted, err := c.convert(&former, true)
	if err != nil {
		return err
	}
	if err := c.manager.Set(converted); err != nil {
		return fmt.Errorf("linux.resources.devices: %w", err)
	}
	return nil
}
