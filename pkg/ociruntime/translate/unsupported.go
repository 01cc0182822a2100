// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/process"
)

// UnsupportedInit returns why the launcher's specification cannot express p, the init of a container of config; "" if
// it can. Then [spec.Container.Unsupported] may know another reason.
func UnsupportedInit(c process.Config, config *configs.Config, p *libcontainer.Process) (reason string) {
	if reason := UnsupportedProcess(config, p); reason != "" {
		return reason
	}
	namespaces := config.Namespaces
	switch {
	case config.NoPivotRoot:
		return "no pivot_root"
	case len(config.TimeOffsets) > 0:
		return "offsets of a time namespace"
	case config.HasHook(configs.CreateContainer, configs.StartContainer, configs.Poststart):
		return "hooks in the container's namespaces"
	case config.HasHook(configs.Prestart, configs.CreateRuntime) && namespaces.PathOf(configs.NEWPID) != "":
		return "hooks, and the PID namespace of another" // these get the pid of a process that ends
	case len(c.Files) > 0:
		return "further descriptors"
	case c.Init && (p.Label != "" || config.ProcessLabel != ""):
		return "a label of SELinux, whose policy has no rule for the file of an init"
	case len(config.NetDevices) > 0 || len(config.Routes) > 0:
		return "network devices"
	}
	for _, m := range config.Mounts {
		switch {
		case m.IsIDMapped() && m.IDMapping.UserNSPath == "" && !hasContainersIDs(config, m.IDMapping):
			return "mount with mapped ids, other than those of the container"
		case m.Extensions != 0:
			return "mount with a copy of what it covers"
		case strings.HasPrefix(m.Device, "cgroup") && cgroups.IsCgroup2UnifiedMode() &&
			namespaces.Contains(configs.NEWUSER) && !namespaces.Contains(configs.NEWCGROUP):
			// The kernel mounts cgroup v2 only for the owner of the cgroup namespace.
			return "mount of cgroup v2 for users of the container, without a cgroup namespace"
		}
	}
	return ""
}

// hasContainersIDs reports whether a mount maps ids as a user namespace that is made for the container.
func hasContainersIDs(config *configs.Config, m *configs.MountIDMapping) bool {
	return config.Namespaces.IsPrivate(configs.NEWUSER) &&
		slices.Equal(m.UIDMappings, config.UIDMappings) && slices.Equal(m.GIDMappings, config.GIDMappings)
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
	case forkResets(cmp.Or(p.Scheduler, config.Scheduler)):
		return "scheduler that a fork changes"
	}
	return ""
}

// forkResets reports whether a fork resets the scheduler s, or is not allowed with it (sched(7)).
func forkResets(s *configs.Scheduler) bool {
	return s != nil && (s.Policy == specs.SchedDeadline || slices.Contains(s.Flags, specs.SchedFlagResetOnFork))
}

// notifies reports whether a seccomp agent decides about calls.
func notifies(s *configs.Seccomp) bool {
	return slices.ContainsFunc(s.Syscalls, func(call *configs.Syscall) bool { return call.Action == configs.Notify })
}
