// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"

	"sandbox.internal/shim/cmd/sandboxctl/leftover"
)

// Check is a row of the table of checks, which docs/sandboxctl-doctor.md has too.
type Check struct {
	Name string
	What string // is looked at, for the documentation
	Fix  string // what to do if a finding says nothing else
	run  func(e *Examination, ctx context.Context) []Finding
}

// installHandlers is the command that gives containerd the handlers.
const installHandlers = "/usr/share/containerd-shim-sandbox-v1/install.sh install --config-only " +
	"(from source: make install-node)"

// delegate returns the command that makes systemd leave the cgroups of a unit alone: set-property does not take it.
func delegate(unit string) string {
	dir := "/etc/systemd/system/" + unit + ".d"
	return fmt.Sprintf(`mkdir -p %s; printf '[Service]\nDelegate=yes\n' >%s/delegate.conf; systemctl daemon-reload; `+
		`systemctl restart %s`, dir, dir, unit)
}

// Checks returns all checks in the order in which they run.
func Checks() []Check {
	return []Check{
		{"privileges", "root, without whom much cannot be seen", "sudo sandboxctl doctor", (*Examination).privileges},
		{
			"kernel-version", "Linux 5.10 or later",
			"boot Linux 5.10 or later (Debian: apt-get install linux-image-$(dpkg --print-architecture); then reboot)",
			(*Examination).kernelVersion,
		},
		{
			"kernel-features", "system calls of the shim, each tried: pidfd_open, clone3, openat2, the mount API, memfd_create",
			"let this program and containerd make the call: a seccomp profile or a kernel without it refuses it",
			(*Examination).kernelFeatures,
		},
		{
			"namespaces", "whether user.max_*_namespaces allow any",
			"sysctl -w user.max_NAME_namespaces=15000, and the same line in /etc/sysctl.d/99-sandbox.conf",
			(*Examination).namespaces,
		},
		{
			"cgroup-mode", "cgroup v2, v1, or both",
			"add systemd.unified_cgroup_hierarchy=1 to the kernel's command line and reboot", (*Examination).cgroupMode,
		},
		{
			"cgroup-controllers", "the controllers cpu, cpuset, io, memory and pids (v1: also devices and freezer)",
			"take cgroup_disable= from the kernel's command line (some boards need cgroup_enable=memory) and reboot",
			(*Examination).cgroupControllers,
		},
		{
			"cgroup-delegation", "that systemd leaves the cgroups of containerd's unit alone",
			delegate("containerd.service"), (*Examination).cgroupDelegation,
		},
		{
			"containerd", "that containerd answers on its socket",
			"systemctl start containerd; journalctl -u containerd says why it ended", (*Examination).containerd,
		},
		{
			"containerd-version", "containerd 1.6 to 2.4", "install containerd 1.7 or 2.x", (*Examination).containerdVersion,
		},
		{
			"handlers", "that containerd's configuration, as read, names a handler with runtime_type io.containerd.sandbox.v1",
			installHandlers, (*Examination).handlers,
		},
		{
			"shim-binary", "that the binary which containerd would start exists, runs, and has the version of this program",
			"install the package of the same release, or: make install PREFIX=/usr/local", (*Examination).shimBinary,
		},
		{
			"default-config", "that the shim accepts " + "/etc/containerd-shim-sandbox-v1/config.toml",
			"fix the file, or remove it: without it containers have no default options", (*Examination).defaultConfig,
		},
		{
			"apparmor", "that containerd can load its AppArmor profile",
			"apt-get install apparmor; systemctl restart containerd", (*Examination).apparmor,
		},
		{
			"selinux", "that containerd labels containers where SELinux enforces",
			"set enable_selinux = true in the table of CRI's plugin in containerd's configuration; systemctl restart containerd",
			(*Examination).selinux,
		},
		{
			"inotify", "fs.inotify.max_user_instances, against what root has",
			"sysctl -w fs.inotify.max_user_instances=8192, and the same in /etc/sysctl.d/99-sandbox.conf",
			(*Examination).inotify,
		},
		{
			"tasks-max", "pids.max of containerd's cgroup, in which shims run, and of those above",
			"systemctl set-property containerd.service TasksMax=infinity", (*Examination).tasksMax,
		},
		{
			"memory-overcommit", "vm.overcommit_memory, and how much is committed where it is 2",
			"sysctl -w vm.overcommit_memory=0, or more swap", (*Examination).overcommit,
		},
		{
			"run-space", "bytes and inodes that are free where containerd keeps its state",
			"mount -o remount,size=50%,nr_inodes=1m /run", (*Examination).runSpace,
		},
		{
			string(leftover.Bundles), "bundles of this runtime without a shim", "systemctl restart containerd",
			leftoversOf(leftover.Bundles),
		},
		{string(leftover.Sockets), "sockets of shims on which nobody listens", "rm SOCKET", leftoversOf(leftover.Sockets)},
		{
			string(leftover.Mounts), "mounts in bundles that nobody has any more", "umount MOUNT",
			leftoversOf(leftover.Mounts),
		},
		{
			string(leftover.States), "state directories, with their cgroups, of containers that containerd does not know",
			"runc --root DIRECTORY delete --force ID", leftoversOf(leftover.States),
		},
		{string(leftover.Shims), "shims whose bundles are gone", "kill -TERM PID", leftoversOf(leftover.Shims)},
	}
}
