// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
)

// creation is a container that is being created: what its undo removes.
type creation struct {
	lc    *libcontainer.Container
	paths map[string]string // of the cgroup, by controller
	group *cgroup.Cgroup
	unit  systemd.Unit // used with systemd's cgroup driver only
	dir   string       // libcontainer's state directory
}

// begin returns the creation of lc, which libcontainer has made, if no process is in its cgroup. Otherwise nothing of
// lc is left. libcontainer itself has looked, on v1 in the hierarchy of devices alone (runc
// libcontainer/factory_linux.go, Create).
func begin(c process.Config, lc *libcontainer.Container) (*creation, error) {
	state, err := lc.State()
	if err != nil {
		return nil, err
	}
	paths := state.CgroupPaths
	made := &creation{lc: lc, paths: paths, group: cgroup.New(paths), dir: stateDir(c.Root, c.ID)}
	if err = made.group.RefuseProcesses(); err == nil {
		return made, nil
	}
	undo := process.UndoCreate(func() error { return made.removeDir() })
	return nil, errors.Join(fmt.Errorf("linux.cgroupsPath %q: %w", c.Spec.Linux.CgroupsPath, err), undo)
}

// manager returns a manager of the cgroup, which may change config, and notes for the undo whether it makes a unit.
func (made *creation) manager(config *cgroups.Cgroup) (cgroups.Manager, error) {
	group, err := manager.NewWithPaths(config, maps.Clone(made.paths)) // Destroy removes from it
	if err != nil || !config.Systemd {
		return group, err
	}
	made.unit.Manager = group
	return &made.unit, nil
}

// undoCreate removes what a failed Create has made: the cgroup with all processes in it, and by remove the state
// directory. init is dead. If only systemd is silent, it still calls remove: the unit ends with its cgroup.
func (r *Runtime) undoCreate(made *creation, remove func() error) error {
	defer r.reaper.Suspend()() // hooks are children of the shim
	ctx, cancel := context.WithTimeoutCause(context.Background(), destroyTimeout, errOccupied)
	defer cancel()
	if made.lc.Config().Cgroups.Systemd {
		defer systemd.Connected()()
	}
	err := made.removeCgroup(ctx)
	if err != nil && !errors.Is(err, systemd.ErrSilent) {
		return err
	}
	return errors.Join(err, remove())
}

// removeCgroup kills what Create has left in the cgroup, such as a hook, and removes the cgroup and the unit. With a
// unit that Create has not made, the cgroup is that of others.
func (made *creation) removeCgroup(ctx context.Context) error {
	isScope := made.lc.Config().Cgroups.Systemd
	if isScope && !made.unit.Made() {
		return nil
	}
	err := endCgroup(ctx, made.group, isScope)
	if err == nil && isScope {
		err = made.unit.Destroy() // frees the name of the scope
	}
	return err
}

// removeMade removes the state directory, and runs the poststop hooks.
func (made *creation) removeMade() error {
	remove := made.removeDir
	if made.lc.Config().IntelRdt != nil && !made.group.Exists() { // there may be others
		remove = made.lc.Destroy // only libcontainer knows whether it has made a group of that
	}
	return removeState(made.lc, made.dir, remove)
}

func (made *creation) removeDir() error { return removeStateDir(made.dir) }
