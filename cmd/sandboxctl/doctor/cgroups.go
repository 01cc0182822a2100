// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

func (e *Examination) cgroupMode(context.Context) []Finding {
	_, mode, err := e.Root.Hierarchies()
	switch {
	case err != nil:
		return []Finding{bad("%v", err)}
	case mode == machine.CgroupNone:
		return []Finding{
			bad("no cgroups are mounted at %s", machine.CgroupRoot).fix("mount -t cgroup2 cgroup2 %s", machine.CgroupRoot),
		}
	case mode != machine.CgroupV2:
		return []Finding{warn("%s: containers run, but CPU sets that follow a cgroup, checkpoints and the pressure of "+
			"containers need cgroup v2 alone", mode)}
	}
	return []Finding{ok("v2")}
}

func (e *Examination) cgroupControllers(context.Context) []Finding {
	list, mode, err := e.Root.Hierarchies()
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	if mode == machine.CgroupNone {
		return []Finding{none("no cgroups are mounted")}
	}
	// Without those that are wanted, containers cannot be made as they are asked for.
	wanted, optional := []string{"cpu", "cpuacct", "devices", "freezer", "memory", "pids"}, []string{"cpuset", "blkio"}
	var have []string
	for _, h := range list {
		have = append(have, h.Controllers...)
	}
	if mode == machine.CgroupV2 {
		wanted, optional = []string{"cpu", "memory", "pids"}, []string{"cpuset", "io"}
		text, err := machine.ReadText(e.Root.Path(machine.CgroupRoot, "cgroup.controllers"))
		if err != nil {
			return []Finding{bad("%v", err)}
		}
		have = strings.Fields(text)
	}
	var findings []Finding
	for _, c := range wanted {
		if !slices.Contains(have, c) {
			findings = append(findings, bad("the controller %s is absent: limits of it are refused", c))
		}
	}
	for _, c := range optional {
		if !slices.Contains(have, c) {
			findings = append(findings, warn("the controller %s is absent: settings of it are refused", c))
		}
	}
	return orOK(findings, strings.Join(append(wanted, optional...), ", "))
}

// cgroupDelegation checks whether systemd knows that containerd makes cgroups in that of its unit. systemd says so in an
// extended attribute of the cgroup (systemd's docs/CGROUP_DELEGATION.md).
func (e *Examination) cgroupDelegation(context.Context) []Finding {
	if _, err := os.Stat(e.Root.Path("run/systemd/system")); err != nil || e.daemonErr != nil {
		return []Finding{none("containerd does not run, or there is no systemd")}
	}
	group, dir := e.Root.CgroupOf(e.daemon.Pid, "name=systemd")
	if dir == "" || !strings.HasSuffix(group, ".service") {
		return []Finding{none("containerd is in no unit of systemd")}
	}
	_, unified := e.Root.CgroupOf(e.daemon.Pid, "") // where systemd says so if v2 is beside v1
	for _, dir := range []string{dir, unified} {
		for _, name := range []string{"user.delegate", "trusted.delegate"} {
			value := make([]byte, 1)
			if n, err := unix.Getxattr(dir, name, value); err == nil && n == 1 && value[0] == '1' {
				return []Finding{ok("systemd delegates %s", group)}
			}
		}
	}
	unit := filepath.Base(group)
	return []Finding{warn("systemd does not delegate %s: it may move shims, or take controllers from cgroups in it", unit).
		fix("%s", dropIn(unit, "Delegate=yes"))}
}
