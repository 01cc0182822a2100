// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runc/libcontainer"

	"sandbox.internal/shim/pkg/launcher/spec"
	"sandbox.internal/shim/pkg/ociruntime/execgroup"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/stdio"
)

// initCommand is p, the init of the container, for the launcher. The error is unsupported if the launcher cannot start
// p.
func (c *container) initCommand(p *libcontainer.Process, s *stdio.Streams) (*spec.Container, error) {
	config := c.lc.Config()
	if reason := translate.UnsupportedInit(c.config, &config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	process, err := c.command(p, s)
	if err != nil {
		return nil, err
	}
	ownDevices := 0
	if linux := c.config.Spec.Linux; linux != nil {
		ownDevices = len(linux.Devices)
	}
	i := translate.LauncherContainer(&config, ownDevices)
	if reason := i.Unsupported(); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	i.Process, i.Reaped = *process, c.config.Init
	if i.Reaped && i.Filter != nil && i.Filter.BlocksInit() {
		return nil, unsupported{errors.New("a seccomp filter that forbids what an init does")}
	}
	return i, nil
}

// command is p for the launcher. The error is unsupported if the launcher cannot start p.
func (c *container) command(p *libcontainer.Process, s *stdio.Streams) (*spec.Process, error) {
	config := c.lc.Config()
	if reason := translate.UnsupportedProcess(&config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	cmd, err := translate.LauncherProcess(&config, p, s)
	if err != nil {
		return nil, err
	}
	cmd.TaskDir, cmd.Target = c.config.TaskDir, c.initFD
	if !config.NoNewKeyring {
		cmd.Keyring = "_ses." + c.config.ID
	}
	if config.Seccomp != nil {
		if cmd.Filter, err = c.filter(); err != nil {
			return nil, unsupported{err}
		}
		if !cmd.NoNewPrivileges && cmd.FilterLast() {
			return nil, unsupported{errors.New("seccomp filter that lets no process begin, without no-new-privileges")}
		}
	}
	return cmd, nil
}

// joinCgroups sets which cgroups the process joins: those of group, or if that is nil, the container's.
func (c *container) joinCgroups(cmd *spec.Process, group *execgroup.Group) {
	paths := c.manager.GetPaths()
	freezer := paths["freezer"] // the container's: thawing it thaws those below
	if group != nil {
		paths = group.Paths
	}
	joined := spec.Cgroups{Unified: paths[""], Outside: ownCgroup}
	if cgroups.IsCgroup2UnifiedMode() {
		joined.Limited = joined.Unified
	} else {
		joined.Limited, joined.Freezer = paths["pids"], freezer
		for name, dir := range paths {
			if name != "" && !slices.Contains(joined.Tasks, dir) {
				joined.Tasks = append(joined.Tasks, dir)
			}
		}
		slices.Sort(joined.Tasks)
	}
	cmd.Cgroups = joined
}

// ownCgroup returns the cgroup of the shim in the hierarchy that limits processes.
func ownCgroup() (string, error) {
	if !cgroups.IsCgroup2UnifiedMode() {
		return cgroups.GetOwnCgroupPath("pids")
	}
	paths, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	return filepath.Join(fs2.UnifiedMountpoint, paths[""]), err
}

// joinInit sets that the process joins the cgroup that init is in, if that is another one on v2: a container that makes
// cgroups of its own may have left none for processes in its own (libcontainer's process_linux.go, addIntoCgroupV2).
func (c *container) joinInit(cmd *spec.Process) bool {
	if !cgroups.IsCgroup2UnifiedMode() {
		return false
	}
	paths, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", c.init.pid))
	dir := fs2.UnifiedMountpoint + paths[""]
	if err != nil || dir == cmd.Cgroups.Unified {
		return false
	}
	cmd.Cgroups.Unified, cmd.Cgroups.Limited = dir, dir
	return true
}
