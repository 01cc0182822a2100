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

	"sandbox.internal/shim/pkg/ociruntime/controlfile"
	"sandbox.internal/shim/pkg/ociruntime/ocierrors"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/resources"
)

// Update implements process.RuntimeContainer. If the kernel refuses a value, Update sets the former resources again, as
// runc does: a setting that the container did not have before keeps its new value.
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
	if err := controlfile.CheckControllers(c.cgroup, fields); err != nil {
		return err
	}
	if err := controlfile.CheckUsage(c.cgroup, write.Memory); err != nil {
		return err
	}
	err := c.write(write, len(write.Devices) > 0)
	if err == nil {
		c.resources = next
		return nil
	}
	err = ocierrors.Update(err, fields, c.cgroup)
	if errors.Is(err, systemd.ErrSilent) {
		return err // systemd is asked first, so nothing was written
	}
	if before == nil {
		before = &specs.LinuxResources{}
	}
	if undo := c.write(before, len(write.Devices) > 0); undo != nil {
		err = errors.Join(err, fmt.Errorf("set the former resources again: %w", undo))
	}
	return err
}

// write writes r. Device rules are written only if setDevices is true, followed by the rules of every container.
func (c *container) write(r *specs.LinuxResources, setDevices bool) error {
	converted, err := c.convert(r, setDevices)
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
