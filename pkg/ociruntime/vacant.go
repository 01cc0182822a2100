// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

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

// begin returns the creation of lc, which libcontainer has made, if nobody is in its cgroup. Otherwise nothing of lc is
// left.
func (r *Runtime) begin(c process.Config, lc *libcontainer.Container) (*creation, error) {
	state, err := lc.State()
	if err != nil {
		return nil, err
	}
	paths := state.CgroupPaths
	made := &creation{lc: lc, paths: paths, group: cgroup.New(paths), dir: stateDir(c.Root, c.ID)}
	if err = r.reserve(made); err == nil {
		return made, nil
	}
	r.end(made)
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

// reserve refuses a cgroup that a process is in, or that this shim is creating another container in: until its init is
// registered, that could not be told from what a failed Create has left. libcontainer itself has looked before the
// reservation, and on v1 in the hierarchy of devices alone (runc libcontainer/factory_linux.go, Create).
func (r *Runtime) reserve(made *creation) error {
	if other, reserved := r.creating.LoadOrStore(made.group.String(), made); reserved {
		return fmt.Errorf("cgroup %s: container %q is being created there: %w",
			made.group, other.(*creation).lc.ID(), errdefs.ErrFailedPrecondition)
	}
	return made.group.RefuseProcesses()
}

// end ends the reservation of begin.
func (r *Runtime) end(made *creation) { r.creating.CompareAndDelete(made.group.String(), made) }

// undoCreate removes what a failed Create has made: the cgroup, unless others are in it, and by remove the state
// directory. init is dead. If only systemd is silent, it still calls remove: the unit ends with its cgroup.
func (r *Runtime) undoCreate(made *creation, remove func() error) error {
	defer r.reaper.Suspend()() // hooks are children of the shim
	ctx, cancel := context.WithTimeoutCause(context.Background(), destroyTimeout, errOccupied)
	defer cancel()
	config := made.lc.Config()
	var unit *systemd.Unit
	if config.Cgroups.Systemd {
		defer systemd.Connected()()
		unit = &made.unit
	}
	err := r.vacate(ctx, made.group, unit)
	if err != nil && !errors.Is(err, systemd.ErrSilent) {
		return err
	}
	return errors.Join(err, remove())
}

// removeMade removes the state directory, and runs the poststop hooks.
func (made *creation) removeMade() error {
	remove := made.removeDir
	if made.lc.Config().IntelRdt != nil && !made.group.Exists() { // vacate leaves it if others are there
		remove = made.lc.Destroy // only libcontainer knows whether it has made a group of that
	}
	return removeState(made.lc, made.dir, remove)
}

func (made *creation) removeDir() error { return removeStateDir(made.dir) }

// vacate kills what this shim has left in a container's cgroup, such as a hook, and removes the cgroup and unit, which
// may be nil. If others are there, it leaves both to them: another container with the same cgroupsPath may have been
// created since Create has looked. With a unit that Create has not made, the cgroup is that of others, too.
func (r *Runtime) vacate(ctx context.Context, group *cgroup.Cgroup, unit *systemd.Unit) error {
	if unit != nil && !unit.Made() {
		return nil
	}
	const longest = 50 * time.Millisecond
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		pids, err := group.Procs()
		attempt, cancel := context.WithTimeout(ctx, wait)
		switch {
		case errdefs.IsNotFound(err):
			cancel()
			return endUnit(ctx, group, unit)
		case err != nil: // below
		case len(pids) == 0:
			err = group.Remove(attempt)
		case slices.ContainsFunc(pids, r.mayOwn):
			err = errors.Join(group.SignalThose(unix.SIGKILL, r.isOwn), group.Thaw())
			<-attempt.Done()
		default:
			cancel()
			log.L.WithField("cgroup", group.String()).WithField("processes", pids).
				Warn("the cgroup of a container that was not created is left to others")
			return nil
		}
		cancel()
		switch {
		case err != nil && !errors.Is(err, unix.EBUSY):
			return err
		case ctx.Err() != nil:
			return errors.Join(group.RefuseProcesses(), context.Cause(ctx))
		}
	}
}

// endUnit frees the name of a scope whose cgroup is gone. libcontainer's call never returns if systemd does not answer.
func endUnit(ctx context.Context, group *cgroup.Cgroup, unit *systemd.Unit) error {
	if unit == nil {
		return nil
	}
	if err := awaitSystemd(ctx, group); err != nil {
		return err
	}
	return unit.Destroy()
}

// owns reports whether a process was started by this shim, or adopted by it, and belongs to none of its containers: its
// ancestors lead to the shim, and nobody waits for one of them. An error means that it, or an ancestor, has ended.
func (r *Runtime) owns(pid int) (bool, error) {
	for self := os.Getpid(); pid > 1 && pid != self && !r.reaper.Registered(pid); {
		_, parent, err := processName(pid)
		if err != nil || parent == self {
			return err == nil && !r.reaper.Registered(pid), err
		}
		pid = parent
	}
	return false, nil
}

func (r *Runtime) isOwn(pid int) bool {
	own, err := r.owns(pid)
	return own && err == nil
}

func (r *Runtime) mayOwn(pid int) bool {
	own, err := r.owns(pid)
	return own || err != nil
}

// processName returns the name of a process and the id of its parent (proc_pid_stat(5)).
func processName(pid int) (name string, parent int, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	end := bytes.LastIndexByte(stat, ')') + 1
	var state string
	_, err = fmt.Sscan(string(stat[end:]), &state, &parent)
	return string(stat[:end]), parent, err
}
