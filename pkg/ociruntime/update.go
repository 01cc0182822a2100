// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

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
	// CRI repeats everything in config.json, which does not have the limits of the container as a run.
	next, write = c.config.Limits.LowerUpdate(next, write, c.cgroup.Unified(), c.countsSwap())
	becomes := next.CPU
	if l := c.config.Limits; l != nil && l.CPUs > 0 && write.CPU != nil && bandwidth(write.CPU).Quota > 0 {
		b := c.cgroup.Fit(bandwidth(write.CPU)) // LowerUpdate has made a copy of write.CPU
		write.CPU.Quota, write.CPU.Period, write.CPU.Burst = &b.Quota, &b.Period, atMost(write.CPU.Burst, b.Quota)
		becomes = write.CPU
	}
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
	return c.execGroups.WithQuotas(func() error {
		var ofExecs cgroup.Snapshot
		var err error
		if write.CPU != nil && becomes != nil {
			ofExecs, err = c.fitExecs(becomes)
		}
		if err == nil {
			err = c.writePatiently(write)
		}
		if err == nil {
			c.resources = next
			return nil
		}
		err = ocierrors.Update(err, fields, c.cgroup)
		if errors.Is(err, systemd.ErrSilent) {
			snapshot = nil // systemd is asked first, so nothing was written
		}
		if undo := c.restore(before, write, snapshot, ofExecs); undo != nil {
			err = errors.Join(err, fmt.Errorf("put the former values back: %w", undo))
		}
		return err
	})
}

// countsSwap reports whether the kernel can limit swap.
func (c *container) countsSwap() bool {
	if c.cgroup.Unified() {
		return true
	}
	_, err := os.Stat(c.cgroup.File("memory.memsw.limit_in_bytes"))
	return err == nil
}

// bandwidth is the quota that r sets.
func bandwidth(r *specs.LinuxCPU) cgroup.Bandwidth {
	b := cgroup.Bandwidth{Period: cgroup.UsualPeriod}
	if r.Quota != nil {
		b.Quota = *r.Quota
	}
	if r.Period != nil && *r.Period > 0 {
		b.Period = *r.Period
	}
	return b
}

// fitExecs lowers quotas of execs to the one that the container is about to have.
func (c *container) fitExecs(becomes *specs.LinuxCPU) (cgroup.Snapshot, error) {
	before, err := c.execGroups.Fit(bandwidth(becomes))
	if err != nil {
		err = fmt.Errorf("linux.resources.cpu.quota: that of execs: %w", err)
	}
	return before, err
}

// writePatiently is write for a container whose execs may have had quotas. On v1 those of an exec that has ended count
// until a thread of the kernel has freed its cgroup (kernel/cgroup/cgroup.c, css_killed_work_fn), some milliseconds
// after it was removed.
func (c *container) writePatiently(r *specs.LinuxResources) error {
	const patience, interval = 200 * time.Millisecond, 5 * time.Millisecond
	for began := time.Now(); ; <-time.After(interval) {
		err := c.write(r)
		lowers := r.CPU != nil && c.config.ExecLimits != nil && !c.cgroup.Unified()
		if !lowers || !errors.Is(err, unix.EINVAL) || time.Since(began) > patience {
			return err
		}
	}
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

// restore undoes a partial write, or with a nil snapshot only what was done to execs. It also restores the properties
// of a scope, since systemd writes them to the files again when it is reloaded.
func (c *container) restore(before, write *specs.LinuxResources, snapshot, ofExecs cgroup.Snapshot) error {
	if snapshot == nil {
		return ofExecs.RestoreLeft()
	}
	var errs []error
	if len(write.Devices) > 0 {
		errs = append(errs, c.restoreDevices(before))
	}
	if s, ok := c.manager.(*systemd.Scope); ok {
		errs = append(errs, s.Restore(snapshot))
	}
	return errors.Join(append(errs, snapshot.Restore(), ofExecs.RestoreLeft())...)
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
