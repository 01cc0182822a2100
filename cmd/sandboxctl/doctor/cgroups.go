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

// needed are controllers without which containers cannot be made as they are asked for.
var needed = map[bool][]string{ // of v2
	true:  {"cpu", "memory", "pids"},
	false: {"cpu", "cpuacct", "devices", "freezer", "memory", "pids"},
}

func (e *Examination) cgroupControllers(context.Context) []Finding {
	list, mode, err := e.Root.Hierarchies()
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	if mode == machine.CgroupNone {
		return []Finding{none("no cgroups are mounted")}
	}
	var have []string
	for _, h := range list {
		if h.Unified && mode == machine.CgroupV2 {
			text, err := machine.ReadText(e.Root.Path(h.Dir, "cgroup.controllers"))
			if err != nil {
				return []Finding{bad("%v", err)}
			}
			have = append(have, strings.Fields(text)...)
		}
		have = append(have, h.Controllers...)
	}
	wanted, optional := needed[mode == machine.CgroupV2], []string{"cpuset", "io"}
	if mode != machine.CgroupV2 {
		optional = []string{"cpuset", "blkio"}
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
	if findings == nil {
		findings = append(findings, ok("%s", strings.Join(append(slices.Clone(wanted), optional...), ", ")))
	}
	return findings
}

func (e *Examination) cgroupDelegation(context.Context) []Finding {
	_, mode, err := e.Root.Hierarchies()
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	var findings []Finding
	if mode == machine.CgroupV2 {
		findings = append(findings, e.handedDown()...)
	}
	findings = append(findings, e.delegated()...)
	if findings == nil {
		findings = append(findings, none("cgroup %s without systemd: there is nothing to delegate", mode))
	}
	return findings
}

// handedDown checks whether the root of cgroup v2 gives its controllers to the cgroups in it, or will when the shim
// asks.
func (e *Examination) handedDown() []Finding {
	file := e.Root.Path(machine.CgroupRoot, "cgroup.subtree_control")
	text, err := machine.ReadText(file)
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	all, err := machine.ReadText(e.Root.Path(machine.CgroupRoot, "cgroup.controllers"))
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	enabled := strings.Fields(text)
	absent := slices.DeleteFunc(strings.Fields(all), func(c string) bool {
		return slices.Contains(enabled, c) || !slices.Contains([]string{"cpu", "cpuset", "io", "memory", "pids"}, c)
	})
	if len(absent) == 0 {
		return []Finding{ok("%s has %s", "cgroup.subtree_control", text)}
	}
	// The root of a machine may have both processes and cgroups with controllers in it; any other cgroup may not, and
	// only such a one has the file cgroup.type (the kernel's Documentation/admin-guide/cgroup-v2.rst).
	procs, err := machine.ReadText(e.Root.Path(machine.CgroupRoot, "cgroup.procs"))
	_, inner := os.Stat(e.Root.Path(machine.CgroupRoot, "cgroup.type"))
	if err == nil && inner == nil && procs != "" {
		return []Finding{bad("%s is not the machine's root, and has processes: the kernel refuses to hand down %s (EBUSY)",
			machine.CgroupRoot, strings.Join(absent, ", ")).
			fix("cd %s; mkdir -p init; for p in $(cat cgroup.procs); do echo $p >init/cgroup.procs; done; "+
				"echo +%s >cgroup.subtree_control", machine.CgroupRoot, strings.Join(absent, " +"))}
	}
	if unix.Access(file, unix.W_OK) != nil {
		return []Finding{bad("%s is read-only, and lacks %s", file, strings.Join(absent, ", ")).
			fix("mount -o remount,rw %s", machine.CgroupRoot)}
	}
	return []Finding{ok("the shim enables %s when a container needs it", strings.Join(absent, ", "))}
}

// delegated checks whether systemd knows that containerd makes cgroups in that of its unit. systemd says so in an
// extended attribute of the cgroup (systemd's docs/CGROUP_DELEGATION.md).
func (e *Examination) delegated() []Finding {
	if _, err := os.Stat(e.Root.Path("run/systemd/system")); err != nil || e.daemonErr != nil {
		return nil
	}
	group, dir := e.Root.CgroupOf(e.daemon.Pid, "name=systemd")
	if dir == "" || !strings.HasSuffix(group, ".service") {
		return nil
	}
	dirs := []string{dir}
	if _, unified := e.Root.CgroupOf(e.daemon.Pid, ""); unified != "" { // where systemd says so if v2 is beside v1
		dirs = append(dirs, unified)
	}
	for _, dir := range dirs {
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
