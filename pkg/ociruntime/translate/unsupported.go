// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"slices"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"

	"sandbox.internal/shim/pkg/process"
)

// UnsupportedInit returns why the launcher's specification cannot express p, the init of a container of config; "" if
// it can. Then [launcher.Container.Unsupported] may know another reason.
func UnsupportedInit(c process.Config, config *configs.Config, p *libcontainer.Process) (reason string) {
	if reason := UnsupportedProcess(config, p); reason != "" {
		return reason
	}
	switch {
	case config.NoPivotRoot:
		return "no pivot_root"
	case len(config.TimeOffsets) > 0:
		return "offsets of a time namespace"
	case config.HasHook(configs.CreateContainer, configs.StartContainer, configs.Poststart):
		return "hooks in the container's namespaces"
	case len(c.Files) > 0:
		return "further descriptors"
	case c.Init && (p.Label != "" || config.ProcessLabel != ""):
		return "a label of SELinux, whose policy has no rule for the file of an init"
	case len(config.NetDevices) > 0 || len(config.Routes) > 0:
		return "network devices"
	}
	for _, m := range config.Mounts {
		if m.IsIDMapped() || m.Extensions != 0 {
			return "mount with mapped ids or a copy of what it covers"
		}
	}
	return ""
}

// UnsupportedProcess returns why the launcher's specification cannot express p in a container of config; "" if it can.
func UnsupportedProcess(config *configs.Config, p *libcontainer.Process) (reason string) {
	switch {
	case config.RootlessEUID || config.RootlessCgroups:
		return "the shim is not root"
	case config.Personality != nil:
		return "personality"
	case config.MemoryPolicy != nil:
		return "memory policy"
	case config.IntelRdt != nil:
		return "Intel RDT"
	case config.Seccomp != nil && (config.Seccomp.ListenerPath != "" || notifies(config.Seccomp)):
		return "seccomp agent"
	case !config.Namespaces.Contains(configs.NEWNS):
		return "no mount namespace"
	case cmp.Or(p.Scheduler, config.Scheduler) != nil, cmp.Or(p.IOPriority, config.IOPriority) != nil,
		cmp.Or(p.CPUAffinity, config.ExecCPUAffinity) != nil:
		return "scheduler, IO priority or CPU affinity"
	}
	return ""
}

// notifies reports whether a seccomp agent decides about calls.
func notifies(s *configs.Seccomp) bool {
	return slices.ContainsFunc(s.Syscalls, func(call *configs.Syscall) bool { return call.Action == configs.Notify })
}
