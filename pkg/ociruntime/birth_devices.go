// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"slices"
	"sync"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
)

// earlyRules gives a cgroup of version 2 its device rules, which are a program that the kernel checks and compiles first, while init
// does something else. libcontainer has init wait for that.
type earlyRules struct {
	done sync.WaitGroup
	set  bool // guarded by done
}

// begin begins in the background. take or wait must be called.
func (e *earlyRules) begin(dir string, r *cgroups.Resources) {
	e.done.Go(func() { e.set = cgroups.DevicesSetV2(dir, r) == nil })
}

func (e *earlyRules) wait() { e.done.Wait() }

// take returns, once, whether the rules are set. Where they could not be, who sets them again hears why.
func (e *earlyRules) take() bool {
	e.wait()
	set := e.set
	e.set = false
	return set
}

// mayComeEarly is false where init may make or open a device for the container that the container itself may not: it does so before there
// are rules. Mounts of some file systems open one, and so may what stands for a device in a user namespace. Making one is denied by rules that
// deny some devices and not all (runc libcontainer/specconv, AllowedDevices; cgroups/devices, emulator).
func mayComeEarly(config *configs.Config) bool {
	withoutDevice := []string{"bind", "cgroup", "cgroup2", "devpts", "mqueue", "proc", "sysfs", "tmpfs"}
	r := config.Cgroups.Resources
	return r != nil && cgroups.DevicesSetV2 != nil && !config.Namespaces.Contains(configs.NEWUSER) &&
		!slices.ContainsFunc(r.Devices, func(d *devices.Rule) bool { return !d.Allow && d.Type != devices.WildcardDevice }) &&
		!slices.ContainsFunc(config.Mounts, func(m *configs.Mount) bool { return !slices.Contains(withoutDevice, m.Device) })
}
