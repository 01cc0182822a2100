// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

func (e *Examination) privileges(context.Context) []Finding {
	if e.Probes.Euid != 0 {
		return []Finding{bad("this is user %d: what other checks say of what only root can read is not to be relied on",
			e.Probes.Euid)}
	}
	return []Finding{ok("root")}
}

// The oldest kernel that the shim accepts (cmd/containerd-shim-sandbox-v1, checkRelease).
const oldestMajor, oldestMinor = 5, 10

func (e *Examination) kernelVersion(context.Context) []Finding {
	release, err := e.Root.Sysctl("kernel/osrelease")
	if err != nil {
		return []Finding{bad("%v", err)}
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
		return []Finding{warn("Linux %q: no version in it", release).fix("uname -r")}
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return []Finding{bad("Linux %s: the shim refuses to start before %d.%d", release, oldestMajor, oldestMinor)}
	}
	return []Finding{ok("Linux %s", release)}
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

// features tries each system call in a way that changes nothing: the kernel returns ENOSYS, or a seccomp filter EPERM,
// before it looks at arguments that it must refuse.
func features() map[string]error {
	const wrong = ^uintptr(0) // no descriptor, no address
	absent := func(errno unix.Errno) error {
		if errno == unix.ENOSYS {
			return errors.New("the kernel has no such call, or a seccomp filter hides it")
		}
		if errno == unix.EPERM {
			return errors.New("not permitted")
		}
		return nil
	}
	try := func(number uintptr, a ...uintptr) error {
		var args [6]uintptr
		copy(args[:], a)
		_, _, errno := unix.Syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		return absent(errno)
	}
	all := map[string]error{
		"pidfd_open":        try(unix.SYS_PIDFD_OPEN, wrong, 0),
		"clone3":            try(unix.SYS_CLONE3, wrong, 0),
		"openat2":           try(unix.SYS_OPENAT2, wrong, wrong, wrong, 0),
		"fsopen":            try(unix.SYS_FSOPEN, wrong, 0),
		"open_tree":         try(unix.SYS_OPEN_TREE, wrong, wrong, 0),
		"move_mount":        try(unix.SYS_MOVE_MOUNT, wrong, wrong, wrong, wrong, 0),
		recursiveAttributes: try(unix.SYS_MOUNT_SETATTR, wrong, wrong, 0, wrong, unsafe.Sizeof(unix.MountAttr{})),
	}
	fd, err := unix.MemfdCreate("sandboxctl", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Close(fd)
	}
	all["memfd_create"] = err
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
