// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/resources"
)

// Update implements process.RuntimeContainer. If the kernel refuses a value, Update sets the former resources again, as
// runc does: a setting that the container did not have before keeps its new value.
func (c *container) Update(r *specs.LinuxResources) error {
	if err := c.use(); err != nil {
		return err
	}
	next, write := resources.Merge(c.resources, r)
	if err := resources.Check(next, resources.ReadHost(next)); err != nil {
		return err
	}
	setDevices := len(write.Devices) > 0
	err := c.write(write, setDevices)
	if err == nil {
		c.resources = next
		return nil
	}
	err = resourcesError(err, c.cgroup)
	if errors.Is(err, systemd.ErrSilent) {
		return err // systemd is asked first, so nothing was written
	}
	if undo := c.write(c.resources, setDevices); undo != nil {
		err = errors.Join(err, fmt.Errorf("set the former resources again: %w", undo))
	}
	return err
}

// write writes r, which it translates as libcontainer translates config.json. Device rules are written only if
// setDevices is true, followed by the rules of every container.
func (c *container) write(r *specs.LinuxResources, setDevices bool) error {
	spec := &specs.Spec{Linux: &specs.Linux{Resources: r}}
	config, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{Spec: spec}, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	converted := config.Resources
	if converted.Memory == -1 && converted.MemorySwap == -1 {
		// Unlimited memory implies it. With 0, libcontainer skips swap if the kernel does not count it (cgroups v0.1.0
		// fs/memory.go, setMemoryAndSwap).
		converted.MemorySwap = 0
	}
	converted.SkipDevices = !setDevices
	if setDevices {
		rules := c.lc.Config().Cgroups.Devices // those of config.json, and of every container
		converted.Devices = append(converted.Devices, rules[c.ownDevices:]...)
	}
	return c.manager.Set(converted)
}
