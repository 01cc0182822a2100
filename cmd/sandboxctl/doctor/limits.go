// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

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
		fix("%s", delegate(unit))}
}

// inotify counts the instances of root: the limit is for each user.
func (e *Examination) inotify(context.Context) []Finding {
	limit, err := machine.ReadNumber(e.Root.Path("proc/sys/fs/inotify/max_user_instances"))
	if err != nil {
		return []Finding{bad("%v", err).fix("build the kernel with CONFIG_INOTIFY_USER")}
	}
	used := 0
	for _, pid := range e.Root.Pids() {
		var stat syscall.Stat_t
		if syscall.Stat(e.Root.ProcFile(pid, ""), &stat) != nil || stat.Uid != 0 {
			continue
		}
		list, _ := os.ReadDir(e.Root.ProcFile(pid, "fd")) // it may be gone
		for _, fd := range list {
			if target, _ := os.Readlink(e.Root.ProcFile(pid, "fd/"+fd.Name())); target == "anon_inode:inotify" {
				used++
			}
		}
	}
	switch {
	case used >= limit:
		return []Finding{bad("fs.inotify.max_user_instances=%d, and root has %d: shims and the kubelet see no changes",
			limit, used)}
	case full(used, limit):
		return []Finding{warn("fs.inotify.max_user_instances=%d, of which root has %d", limit, used)}
	}
	return []Finding{ok("max_user_instances: %d of %d", used, limit)}
}

// fewTasks is less than a hundred pods have: a shim has about ten threads.
const fewTasks = 1000

func (e *Examination) tasksMax(context.Context) []Finding {
	if e.daemonErr != nil {
		return []Finding{none("containerd does not run")}
	}
	group, dir := e.Root.CgroupOf(e.daemon.Pid, "pids")
	if dir == "" {
		return []Finding{none("containerd has no cgroup with the controller pids")}
	}
	for ; ; group, dir = filepath.Dir(group), filepath.Dir(dir) {
		limit, err := machine.ReadNumber(filepath.Join(dir, "pids.max"))
		used, usedErr := machine.ReadNumber(filepath.Join(dir, "pids.current"))
		remedy := "systemctl set-property " + filepath.Base(group) + " TasksMax=infinity"
		switch {
		case errors.Join(err, usedErr) != nil || limit < 0: // the root has none
		case full(used, limit):
			return []Finding{warn("pids.max of %s is %d, and it has %d threads: soon no shim can start", group, limit, used).
				fix("%s", remedy)}
		case limit < fewTasks:
			return []Finding{warn("pids.max of %s is %d: shims run there, with about ten threads each", group, limit).
				fix("%s", remedy)}
		}
		if group == "/" || group == "." {
			return []Finding{ok("no limit, or far from it")}
		}
	}
}

func (e *Examination) overcommit(context.Context) []Finding {
	mode, err := e.Root.Sysctl("vm/overcommit_memory")
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	if mode != "2" {
		return []Finding{ok("vm.overcommit_memory=%s", mode)}
	}
	text, err := machine.ReadText(e.Root.Path("proc/meminfo"))
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	limit, _ := strconv.Atoi(field(text, "CommitLimit:")) // 0 is full, and shows that it cannot be read
	used, _ := strconv.Atoi(field(text, "Committed_AS:"))
	share := used * 100 / max(limit, 1)
	if full(used, limit) {
		return []Finding{warn("vm.overcommit_memory=2, and %d%% of what may be committed is: programs soon get no memory, and "+
			"shims do not start", share)}
	}
	return []Finding{ok("vm.overcommit_memory=2, with %d%% committed", share)}
}

// Shares of a file system that are free.
const (
	littleSpace = 0.1
	noSpace     = 0.02
)

func (e *Examination) runSpace(context.Context) []Finding {
	var s unix.Statfs_t
	if err := unix.Statfs(e.Root.Path(e.State), &s); err != nil {
		return []Finding{none("%s: %v", e.State, err)}
	}
	bytes, inodes := float64(s.Bavail)/float64(s.Blocks), 1.0
	if s.Files > 0 { // else there is no limit
		inodes = float64(s.Ffree) / float64(s.Files)
	}
	text := "bytes and inodes that are free in " + e.State
	switch least := min(bytes, inodes); {
	case least < noSpace:
		return []Finding{bad("%s: %.0f%% and %.0f%%: containers cannot be made", text, 100*bytes, 100*inodes)}
	case least < littleSpace:
		return []Finding{warn("%s: %.0f%% and %.0f%%", text, 100*bytes, 100*inodes)}
	}
	return []Finding{ok("%s: %.0f%% and %.0f%%", text, 100*bytes, 100*inodes)}
}

// full reports whether so much is used that it may soon be all.
func full(used, limit int) bool { return limit >= 0 && used >= limit-limit/5 }
