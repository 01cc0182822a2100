// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os"

	"sandbox.internal/shim/cmd/sandboxctl/machine"
)

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
