// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/ociruntime/execgroup"
	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// unsupportedInitReason returns why the launcher cannot start p, the init of a container of config; "" if it can.
func unsupportedInitReason(c process.Config, config *configs.Config, p *libcontainer.Process) (reason string) {
	if reason := unsupportedReason(config, p); reason != "" {
		return reason
	}
	namespaces := config.Namespaces
	switch {
	case config.NoPivotRoot:
		return "no pivot_root"
	case len(config.TimeOffsets) > 0:
		return "offsets of a time namespace"
	case namespaces.PathOf(configs.NEWTIME) != "":
		return "time namespace of another"
	case namespaces.PathOf(configs.NEWNS) != "":
		return "mount namespace of another"
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
	if namespaces.PathOf(configs.NEWPID) != "" && !launch.MountsProcOfPIDNamespace() {
		return "PID namespace of another, before Linux 6.17"
	}
	if !launch.HasMountSetattr() {
		return "no mount_setattr, before Linux 5.12"
	}
	for _, d := range config.Devices {
		if launch.HasPathOfRootfs(config, d.Path) {
			return "device with the path of the root file system"
		}
	}
	for _, m := range config.Mounts {
		if reason := launch.UnsupportedMount(config, m); reason != "" {
			return reason
		}
		// The kernel mounts cgroup v2 only for the owner of the cgroup namespace.
		if strings.HasPrefix(m.Device, "cgroup") && cgroups.IsCgroup2UnifiedMode() &&
			namespaces.Contains(configs.NEWUSER) && !namespaces.Contains(configs.NEWCGROUP) {
			return "mount of cgroup v2 for users of the container, without a cgroup namespace"
		}
	}
	return ""
}

// unsupportedReason returns why the launcher cannot start p in a container of config; "" if it can.
func unsupportedReason(config *configs.Config, p *libcontainer.Process) (reason string) {
	zero := func(s string) bool { return strings.ContainsRune(s, 0) }
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
	case zero(p.Cwd),
		slices.ContainsFunc(slices.Concat(p.Args, p.Env, config.ReadonlyPaths, config.MaskPaths), zero):
		return "zero byte in a string"
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

// initCommand is p, the init of c, for the launcher.
func (l *launcherStarter) initCommand(
	c *container, p *libcontainer.Process, s *stdio.Streams,
) (*initLauncher, error) {
	config := c.lc.Config()
	if reason := unsupportedInitReason(c.config, &config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	command, err := c.command(p, s)
	if err != nil {
		return nil, err
	}
	i := &initLauncher{Init: launch.Init{Command: *command, Config: &config}, container: c}
	if c.config.Init {
		if command.Filter != nil && command.Filter.BlocksInit() {
			return nil, unsupported{errors.New("a seccomp filter that forbids what an init does")}
		}
		if i.Reaped, err = l.init(); err != nil {
			return nil, unsupported{err}
		}
	}
	if made := c.config.Spec.Linux; made != nil {
		i.Devices = config.Devices[len(config.Devices)-len(made.Devices):] // specconv, createDevices
	}
	return i, nil
}

// command is p for the launcher. Defaults are the container's, as in libcontainer (container_linux.go, newInitConfig).
func (c *container) command(p *libcontainer.Process, s *stdio.Streams) (*launch.Command, error) {
	config := c.lc.Config()
	if reason := unsupportedReason(&config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	cmd := &launch.Command{
		Args: p.Args, Cwd: p.Cwd, TaskDir: c.config.TaskDir,
		Init: c.initFD, Namespaces: int(namespaces(&config)),
		OOMScoreAdj: config.OomScoreAdj, Umask: config.Umask,
		Label:           cmp.Or(p.Label, config.ProcessLabel),
		Profile:         cmp.Or(p.AppArmorProfile, config.AppArmorProfile),
		NoNewPrivileges: config.NoNewPrivileges,
		UID:             p.UID, GID: p.GID, Groups: p.AdditionalGroups,
		MayDenyGroups: config.Namespaces.Contains(configs.NEWUSER),
	}
	if p.NoNewPrivileges != nil {
		cmd.NoNewPrivileges = *p.NoNewPrivileges
	}
	if !config.NoNewKeyring {
		cmd.Keyring = "_ses." + c.config.ID
	}
	var err error
	if cmd.Env, cmd.FindHome, err = environment(p.Env); err != nil {
		return nil, err
	}
	stream := func(s any) *os.File { f, _ := s.(*os.File); return f }
	if p.ConsoleSocket != nil {
		cmd.Terminal = &launch.Terminal{Socket: p.ConsoleSocket, Width: p.ConsoleWidth, Height: p.ConsoleHeight}
		_, _, cmd.Stdio[2] = s.Child()
	} else {
		cmd.Stdio = [3]*os.File{stream(p.Stdin), stream(p.Stdout), stream(p.Stderr)}
	}
	for _, l := range translate.Rlimits(p.Rlimits, config.Rlimits) {
		cmd.Rlimits = append(cmd.Rlimits, launch.Rlimit{Resource: l.Type, Soft: l.Soft, Hard: l.Hard})
	}
	if config.Seccomp != nil {
		if cmd.Filter, err = c.filter(); err != nil {
			return nil, unsupported{err}
		}
		if !cmd.NoNewPrivileges && cmd.FilterLast() {
			return nil, unsupported{errors.New("seccomp filter that lets no process begin, without no-new-privileges")}
		}
	}
	if err := cmp.Or(setCapabilities(cmd, &config, p), setScheduling(cmd, &config, p)); err != nil {
		return nil, err
	}
	return cmd, nil
}

// namespaces returns the flags of all namespaces that the configuration lists: an exec joins them.
func namespaces(config *configs.Config) (flags uintptr) {
	for _, n := range config.Namespaces {
		one := configs.Namespaces{{Type: n.Type}} // without its path, because of which CloneFlags would skip it
		flags |= one.CloneFlags()
	}
	return flags
}

// joinCgroups sets which cgroups the process joins: those of group, or if that is nil, the container's.
func (c *container) joinCgroups(cmd *launch.Command, group *execgroup.Group) {
	paths := c.manager.GetPaths()
	freezer := paths["freezer"] // the container's: thawing it thaws those below
	if group != nil {
		paths = group.Paths
	}
	cmd.Unified = paths[""]
	if cgroups.IsCgroup2UnifiedMode() {
		cmd.Limited = cmd.Unified
		return
	}
	cmd.Limited = paths["pids"]
	for name, dir := range paths {
		if name != "" && !slices.Contains(cmd.Tasks, dir) {
			cmd.Tasks = append(cmd.Tasks, dir)
		}
	}
	slices.Sort(cmd.Tasks)
	cmd.Freezer = freezer
}

// joinInit sets that the process joins the cgroup that init is in, if that is another one on v2: a container that makes
// cgroups of its own may have left none for processes in its own (libcontainer's process_linux.go, addIntoCgroupV2).
func (c *container) joinInit(cmd *launch.Command) bool {
	if !cgroups.IsCgroup2UnifiedMode() {
		return false
	}
	paths, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", c.init.pid))
	dir := fs2.UnifiedMountpoint + paths[""]
	if err != nil || dir == cmd.Unified {
		return false
	}
	cmd.Unified, cmd.Limited = dir, dir
	return true
}

// environment keeps the last setting of each name, and reports whether HOME is missing or empty (libcontainer env.go,
// prepareEnv).
func environment(env []string) (out []string, noHome bool, err error) {
	noHome = true
	seen := map[string]bool{}
	for _, setting := range slices.Backward(env) {
		name, value, ok := strings.Cut(setting, "=")
		switch {
		case !ok:
			return nil, false, errors.New("invalid environment variable: missing '='")
		case name == "":
			return nil, false, errors.New("invalid environment variable: name cannot be empty")
		case seen[name]:
			continue
		}
		seen[name] = true
		if name == "HOME" {
			if value == "" {
				continue
			}
			noHome = false
		}
		out = append(out, setting)
	}
	slices.Reverse(out)
	return out, noHome, nil
}

// setScheduling sets the scheduler, the IO priority and the CPUs.
func setScheduling(cmd *launch.Command, config *configs.Config, p *libcontainer.Process) error {
	scheduler, priority := cmp.Or(p.Scheduler, config.Scheduler), cmp.Or(p.IOPriority, config.IOPriority)
	if scheduler != nil {
		attr, err := configs.ToSchedAttr(scheduler)
		if err != nil {
			return err
		}
		cmd.Scheduler = attr
	}
	if priority != nil {
		class, ok := ioClasses[priority.Class]
		if !ok {
			return fmt.Errorf("invalid io priority class: %s", priority.Class)
		}
		const classShift = 13 // IOPRIO_CLASS_SHIFT
		value := class<<classShift | priority.Priority
		cmd.IOPriority = &value
	}
	if affinity := cmp.Or(p.CPUAffinity, config.ExecCPUAffinity); affinity != nil {
		cmd.InitialAffinity, cmd.FinalAffinity = cpus(affinity.Initial), cpus(affinity.Final)
	}
	return nil
}

// ioClasses are the classes of ioprio_set(2).
var ioClasses = map[specs.IOPriorityClass]int{
	specs.IOPRIO_CLASS_RT: 1, specs.IOPRIO_CLASS_BE: 2, specs.IOPRIO_CLASS_IDLE: 3,
}

// cpus returns set in the form that sched_setaffinity(2) takes.
func cpus(set *unix.CPUSet) []byte {
	if set == nil {
		return nil
	}
	mask, _ := binary.Append(nil, binary.NativeEndian, set) // its size is fixed
	return mask
}

// setCapabilities sets the capability sets, without those that the kernel does not know, as in libcontainer.
func setCapabilities(cmd *launch.Command, config *configs.Config, p *libcontainer.Process) error {
	caps := cmp.Or(p.Capabilities, config.Capabilities)
	if caps == nil {
		return nil
	}
	known := capabilities.KnownCapabilities() // in the order of their numbers
	lastCap, err := capability.LastCap()
	if err != nil {
		return err
	}
	last := int(lastCap)
	bits := func(names []string) (set uint64) {
		for _, name := range names {
			if i := slices.Index(known, name); i >= 0 && i <= last {
				set |= 1 << i
			}
		}
		return set
	}
	cmd.Capabilities = &launch.Capabilities{
		Bounding: bits(caps.Bounding), Effective: bits(caps.Effective), Permitted: bits(caps.Permitted),
		Inheritable: bits(caps.Inheritable), Ambient: bits(caps.Ambient), Last: last,
	}
	return nil
}
