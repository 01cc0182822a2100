// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"

	"sandbox.internal/shim/pkg/launcher"
)

// LauncherProcess translates p for the launcher. Defaults are the container's, as in libcontainer (container_linux.go,
// newInitConfig). It leaves out the seccomp filter, the target and the cgroups.
func LauncherProcess(config *configs.Config, p *libcontainer.Process) (*launcher.Process, error) {
	cmd := &launcher.Process{
		Args: p.Args, Cwd: p.Cwd, Join: namespaces(config),
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
	var err error
	if cmd.Env, cmd.FindHome, err = environment(p.Env); err != nil {
		return nil, err
	}
	stream := func(s any) *os.File { f, _ := s.(*os.File); return f }
	if p.ConsoleSocket != nil {
		cmd.Terminal = &launcher.Terminal{Socket: p.ConsoleSocket, Width: p.ConsoleWidth, Height: p.ConsoleHeight}
	} else {
		cmd.Stdio = [3]*os.File{stream(p.Stdin), stream(p.Stdout), stream(p.Stderr)}
	}
	for _, l := range Rlimits(p.Rlimits, config.Rlimits) {
		cmd.Rlimits = append(cmd.Rlimits, launcher.Rlimit{Resource: l.Type, Soft: l.Soft, Hard: l.Hard})
	}
	return cmd, setCapabilities(cmd, config, p)
}

// LauncherContainer translates the configuration of a container for the launcher. It leaves out the process.
func LauncherContainer(config *configs.Config) *launcher.Container {
	c := &launcher.Container{
		Root: config.Rootfs, ReadonlyRoot: config.Readonlyfs, RootPropagation: config.RootPropagation,
		MountLabel: config.MountLabel, ReadonlyPaths: config.ReadonlyPaths, MaskedPaths: config.MaskPaths,
		Hostname: config.Hostname, Domainname: config.Domainname, Sysctl: config.Sysctl,
		Loopback:    len(config.Networks) > 0,
		MountedOnce: config.HasHook(configs.Prestart, configs.CreateRuntime),
	}
	for _, ns := range config.Namespaces {
		c.Namespaces = append(c.Namespaces, launcher.Namespace{Type: ns.Syscall(), Path: ns.Path})
	}
	for _, m := range config.Mounts {
		c.Mounts = append(c.Mounts, &launcher.Mount{
			Type: m.Device, Source: m.Source, Destination: m.Destination, Flags: m.Flags, ClearedFlags: m.ClearedFlags,
			Propagation: m.PropagationFlags, Data: m.Data, Recursive: m.RecAttr,
		})
	}
	for _, d := range config.Devices {
		c.Devices = append(c.Devices, &launcher.Device{
			Path: d.Path, Type: rune(d.Type), Major: uint32(d.Major), Minor: uint32(d.Minor), Mode: uint32(d.FileMode),
			UID: d.Uid, GID: d.Gid,
		})
	}
	return c
}

// namespaces returns the flags of all namespaces that the configuration lists: an exec joins them.
func namespaces(config *configs.Config) (flags int) {
	for _, n := range config.Namespaces {
		flags |= n.Syscall()
	}
	return flags
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

// setCapabilities sets the capability sets, without those that the kernel does not know, as in libcontainer.
func setCapabilities(cmd *launcher.Process, config *configs.Config, p *libcontainer.Process) error {
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
	cmd.Capabilities = &launcher.Capabilities{
		Bounding: bits(caps.Bounding), Effective: bits(caps.Effective), Permitted: bits(caps.Permitted),
		Inheritable: bits(caps.Inheritable), Ambient: bits(caps.Ambient), Last: last,
	}
	return nil
}

// CgroupMounts returns what a mount of type cgroup shows on cgroup v1 (rootfs_linux.go, getCgroupMounts).
func CgroupMounts(config *configs.Config, paths map[string]string) (list []launcher.CgroupMount, err error) {
	isCgroup := func(m *configs.Mount) bool { return m.Device == "cgroup" }
	if cgroups.IsCgroup2UnifiedMode() || !slices.ContainsFunc(config.Mounts, isCgroup) {
		return nil, nil
	}
	mounts, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		return nil, err
	}
	shims, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		name := filepath.Base(m.Mountpoint)
		one := launcher.CgroupMount{Name: name, Controllers: strings.Split(name, ",")}
		if name == "systemd" {
			one.Controllers = []string{cgroups.CgroupNamePrefix + name}
		}
		for _, subsystem := range m.Subsystems {
			if dir := cmp.Or(paths[subsystem], paths[cgroups.CgroupNamePrefix+subsystem]); dir != "" {
				one.Directory = dir
			}
		}
		if one.Directory == "" { // a hierarchy in which init stays where the shim is
			dir, err := m.GetOwnCgroup(shims)
			if err != nil {
				return nil, err
			}
			below, err := filepath.Rel(m.Root, dir)
			if err != nil {
				return nil, err
			}
			one.Directory = path.Join(m.Mountpoint, below)
		}
		list = append(list, one)
	}
	return list, nil
}
