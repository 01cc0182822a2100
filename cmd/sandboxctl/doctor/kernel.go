// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
	"sandbox.internal/shim/cmd/sandboxctl/measure"
)

func (e *Examination) privileges(context.Context) []Finding {
	if e.Probes.Euid != 0 {
		return []Finding{bad("this is user %d: other checks do not see what only root can read", e.Probes.Euid)}
	}
	return []Finding{ok("root")}
}

// oldestKernel is the oldest that the shim accepts (cmd/containerd-shim-sandbox-v1, checkRelease).
const oldestKernel = 5_10

func (e *Examination) kernelVersion(context.Context) []Finding {
	version, err := e.Root.Sysctl("kernel/osrelease")
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	if releaseOf(version) < oldestKernel {
		return []Finding{bad("Linux %s: the shim refuses to start before 5.10", version)}
	}
	return []Finding{ok("Linux %s", version)}
}

// The name of a feature that the shim can do without.
const recursiveAttributes = "mount_setattr"

func (e *Examination) kernelFeatures(context.Context) []Finding {
	all := e.Probes.Features()
	var findings []Finding
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch err := all[name]; {
		case err == nil:
		case name == recursiveAttributes:
			findings = append(findings, warn("%s: %v: recursive read-only mounts, idmapped mounts and host-rootfs are refused",
				name, err).fix("boot Linux 5.12 or later"))
		default:
			findings = append(findings, bad("%s: %v", name, err))
		}
	}
	return orOK(findings, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
}

// features tries each system call with arguments that the kernel must refuse: before it looks at these, it returns
// ENOSYS, or a seccomp filter EPERM.
func features() map[string]error {
	const wrong = ^uintptr(0) // no descriptor, no address, no flags
	all := map[string]error{}
	for name, number := range map[string]uintptr{
		"pidfd_open": unix.SYS_PIDFD_OPEN, "clone3": unix.SYS_CLONE3, "openat2": unix.SYS_OPENAT2, "fsopen": unix.SYS_FSOPEN,
		"open_tree": unix.SYS_OPEN_TREE, "move_mount": unix.SYS_MOVE_MOUNT, recursiveAttributes: unix.SYS_MOUNT_SETATTR,
		"memfd_create": unix.SYS_MEMFD_CREATE,
	} {
		all[name] = nil
		_, _, errno := unix.Syscall6(number, wrong, wrong, wrong, wrong, wrong, wrong)
		if errno == unix.ENOSYS || errno == unix.EPERM {
			all[name] = errno
		}
	}
	return all
}

func (e *Examination) namespaces(context.Context) []Finding {
	var findings []Finding
	for _, name := range []string{"mnt", "pid", "ipc", "uts", "net", "cgroup", "user"} {
		text, err := e.Root.Sysctl("user/max_" + name + "_namespaces")
		remedy := "sysctl -w user.max_" + name + "_namespaces=15000, and the same line in /etc/sysctl.d/99-sandbox.conf"
		switch {
		case err != nil:
			findings = append(findings, warn("%v", err).fix("build the kernel with namespaces of this type"))
		case text == "0" && name == "user":
			findings = append(findings, warn("user.max_user_namespaces=0: pods with users of their own (hostUsers: false) "+
				"are refused").fix("%s", remedy))
		case text == "0":
			findings = append(findings, bad("user.max_%s_namespaces=0: no container can be made", name).fix("%s", remedy))
		}
	}
	return orOK(findings, "all types are allowed")
}

// apparmor checks what containerd's pkg/apparmor looks at.
func (e *Examination) apparmor(context.Context) []Finding {
	enabled, err := machine.ReadText(e.Root.Path("sys/module/apparmor/parameters/enabled"))
	if err != nil || enabled != "Y" {
		return []Finding{none("AppArmor is not enabled")}
	}
	if _, err := os.Stat(e.Root.Path("sys/kernel/security/apparmor")); err != nil {
		return []Finding{warn("AppArmor is enabled, and securityfs is not mounted: containers run without a profile").
			fix("mount -t securityfs securityfs /sys/kernel/security; systemctl restart containerd")}
	}
	if _, err := os.Stat(e.Root.Path("sbin/apparmor_parser")); err != nil {
		return []Finding{warn("AppArmor is enabled, and there is no /sbin/apparmor_parser: containers run without a profile")}
	}
	if e.configErr != nil {
		return []Finding{none("enabled, but containerd's configuration cannot be read: %v", e.configErr)}
	}
	if e.criSetting("disable_apparmor") {
		return []Finding{warn("AppArmor is enabled, and disable_apparmor = true in %s: pods run without a profile",
			e.config.file).fix("set disable_apparmor = false in %s; systemctl restart containerd", e.config.file)}
	}
	return []Finding{ok("enabled, with its parser")}
}

func (e *Examination) selinux(context.Context) []Finding {
	enforce, err := machine.ReadText(e.Root.Path("sys/fs/selinux/enforce"))
	switch {
	case err != nil:
		return []Finding{none("SELinux is not enabled")}
	case e.configErr != nil:
		return []Finding{none("enforce=%s, but containerd's configuration cannot be read: %v", enforce, e.configErr)}
	case e.config.disabled("cri"):
		return []Finding{none("CRI is disabled: who makes containers names their labels")}
	case e.criSetting("enable_selinux"):
		return []Finding{ok("enforce=%s, and containerd labels containers", enforce)}
	case enforce == "1":
		return []Finding{warn("SELinux enforces, and enable_selinux is not true in %s: containers run with the label of "+
			"containerd", e.config.file)}
	}
	return []Finding{ok("permissive")}
}

// criSetting finds a boolean in whichever plugin of CRI has it.
func (e *Examination) criSetting(name string) bool {
	for plugin := range e.config.table("plugins") {
		if on, _ := e.config.table("plugins", plugin)[name].(bool); on {
			return true
		}
	}
	return false
}

func (e *Examination) cgroupMode(context.Context) []Finding {
	h, err := measure.FindHierarchies(e.Root)
	switch mode := h.Mode(); {
	case err != nil:
		return []Finding{bad("%v", err)}
	case mode == "none":
		return []Finding{
			bad("no cgroups are mounted at %s", machine.CgroupRoot).fix("mount -t cgroup2 cgroup2 %s", machine.CgroupRoot),
		}
	case mode != "v2":
		return []Finding{warn("%s: containers run, but CPU sets that follow a cgroup, checkpoints and the pressure of "+
			"containers need cgroup v2 alone", mode)}
	}
	return []Finding{ok("v2")}
}

func (e *Examination) cgroupControllers(context.Context) []Finding {
	h, err := measure.FindHierarchies(e.Root)
	if err != nil || h.Mode() == "none" {
		return []Finding{none("no cgroups are mounted")}
	}
	// Without those that are wanted, containers cannot be made as they are asked for.
	wanted, optional := []string{"cpu", "cpuacct", "devices", "freezer", "memory", "pids"}, []string{"cpuset", "blkio"}
	have := slices.Collect(maps.Keys(h))
	if h.Mode() == "v2" {
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

// cgroupDelegation checks whether systemd knows that containerd makes cgroups in that of its unit: systemd sets an
// extended attribute of the cgroup (systemd's docs/CGROUP_DELEGATION.md).
func (e *Examination) cgroupDelegation(context.Context) []Finding {
	if _, err := os.Stat(e.Root.Path("run/systemd/system")); err != nil || e.daemonErr != nil {
		return []Finding{none("containerd does not run, or there is no systemd")}
	}
	dirs := e.daemonGroups()
	unit := filepath.Base(cmp.Or(dirs["name=systemd"], dirs[""]))
	if !strings.HasSuffix(unit, ".service") {
		return []Finding{none("containerd is in no unit of systemd")}
	}
	for _, hierarchy := range []string{"name=systemd", ""} { // systemd says so in v2 if that is beside v1
		for _, name := range []string{"user.delegate", "trusted.delegate"} {
			value := make([]byte, 1)
			if n, err := unix.Getxattr(dirs[hierarchy], name, value); err == nil && n == 1 && value[0] == '1' {
				return []Finding{ok("systemd delegates %s", unit)}
			}
		}
	}
	return []Finding{warn("systemd does not delegate %s: it may move shims, or take controllers from cgroups in it", unit).
		fix("%s", delegate(unit))}
}

// daemonGroups returns the directories of containerd's cgroups, by hierarchy.
func (e *Examination) daemonGroups() map[string]string {
	h, _ := measure.FindHierarchies(e.Root) // which another check says
	dirs := h.Of(e.Root, e.daemon.Pid)
	for name, dir := range dirs {
		dirs[name] = e.Root.Path(dir)
	}
	return dirs
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
	dirs, top := e.daemonGroups(), e.Root.Path(machine.CgroupRoot)
	for dir := cmp.Or(dirs["pids"], dirs[""]); machine.Within(top, dir); dir = filepath.Dir(dir) {
		limit, err := machine.ReadNumber(filepath.Join(dir, "pids.max"))
		used, usedErr := machine.ReadNumber(filepath.Join(dir, "pids.current"))
		remedy := "systemctl set-property " + filepath.Base(dir) + " TasksMax=infinity"
		switch {
		case errors.Join(err, usedErr) != nil || limit < 0: // the root has none
		case full(used, limit):
			return []Finding{warn("pids.max of %s is %d, and it has %d threads: soon no shim can start", dir, limit, used).
				fix("%s", remedy)}
		case limit < fewTasks:
			return []Finding{warn("pids.max of %s is %d: shims run there, with about ten threads each", dir, limit).
				fix("%s", remedy)}
		}
	}
	return []Finding{ok("no limit, or far from it")}
}

func (e *Examination) overcommit(context.Context) []Finding {
	mode, err := e.Root.Sysctl("vm/overcommit_memory")
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	if mode != "2" {
		return []Finding{ok("vm.overcommit_memory=%s", mode)}
	}
	text, _ := machine.ReadText(e.Root.Path("proc/meminfo"))
	limit, _ := strconv.Atoi(field(text, "CommitLimit:")) // 0 is full, and shows that it cannot be read
	used, _ := strconv.Atoi(field(text, "Committed_AS:"))
	share := used * 100 / max(limit, 1)
	if full(used, limit) {
		return []Finding{warn("vm.overcommit_memory=2, and %d%% of what may be committed is: soon programs get no memory, "+
			"and shims do not start", share)}
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
