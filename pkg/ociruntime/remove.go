// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/system"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/unixfile"
)

// Remove stops a container whose shim is dead, as c.Stop says, and removes it. It reads all that it needs from the
// state directory. c.Spec is needed only if the shim died during Create, before there was a state, or if that cannot be
// decoded: it then names the cgroup. Remove may be called again, and for a container that never existed.
func Remove(ctx context.Context, c process.Config) error {
	if c.ID == "" { // its state directory would be that of all containers
		return fmt.Errorf("remove container %q: id must not be empty: %w", c.ID, errdefs.ErrInvalidArgument)
	}
	// Create makes this directory before a cgroup or a process. containerd calls this after each shim, and most shims
	// were asked to end, so this is the usual case.
	if _, err := os.Lstat(stateDir(c.Root, c.ID)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := endFreezing(c); err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	lc, err := libcontainer.Load(c.Root, c.ID)
	if err != nil {
		return removeWithoutState(ctx, c, err)
	}
	state, err := lc.State()
	if err != nil {
		return err
	}
	stop(ctx, lc, state, c.Stop)
	// Init is killed by its pid too, since it may have been moved out of the container's cgroup.
	if err := signalInit(state, unix.SIGKILL); err != nil {
		log.L.WithError(err).WithField("container", c.ID).Warn("kill init")
	}
	group := cgroup.New(state.CgroupPaths)
	if err := group.Kill(ctx, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the processes of container %q: %w", c.ID, err)
	}
	// On cgroup v2 frozen processes die without being thawed, and libcontainer takes a frozen cgroup for a paused
	// container even if it is empty.
	if err := group.Thaw(); err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	if err := awaitDeath(ctx, lc); err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	return destroy(ctx, lc, stateDir(c.Root, c.ID))
}

// endFreezing thaws a container: if the shim died while it froze it, libcontainer.Load would wait, on v1 for ever.
// Whether a state can be decoded, Load says.
func endFreezing(c process.Config) error {
	var state struct { // of libcontainer.State
		CgroupPaths map[string]string `json:"cgroup_paths"`
	}
	err := unixfile.ReadJSON(filepath.Join(stateDir(c.Root, c.ID), "state.json"), &state)
	if _, unread := errors.AsType[*os.PathError](err); unread && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return cgroup.New(state.CgroupPaths).Thaw()
}

// awaitDeath waits until init, which is not a child of this process, is dead.
func awaitDeath(ctx context.Context, lc *libcontainer.Container) error {
	const interval = 5 * time.Millisecond
	for {
		status, err := lc.Status()
		if err != nil {
			return err
		}
		if status == libcontainer.Stopped {
			return nil
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return fmt.Errorf("init still lives after SIGKILL: %w", ctx.Err())
		}
	}
}

// signalInit sends a signal to the init of a container, which is not a child of this process, unless it is dead. For a
// container without a PID namespace of its own, SIGKILL by libcontainer would go to all processes in the cgroup and
// below it, and never to an init that is elsewhere.
func signalInit(state *libcontainer.State, sig unix.Signal) error {
	fd, err := openInit(state.InitProcessPid, state.InitProcessStartTime)
	if err != nil || fd < 0 {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it was only used to send a signal
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return os.NewSyscallError("pidfd_send_signal", err)
}

// openInit returns a pidfd of the process that has the id pid since the time start (proc_pid_stat(5), starttime), or -1
// if all threads of that have ended.
func openInit(pid int, start uint64) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return -1, nil // the last two: the id is that of a thread now, or 0
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	stat, err := system.Stat(pid)
	gone := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
	if err == nil {
		var ended bool
		ended, err = cgroup.HasEnded(fd) // the state in stat is that of the first thread
		gone = ended || stat.StartTime != start
	}
	if err == nil && !gone {
		return fd, nil
	}
	_ = unix.Close(fd) // nothing was written
	if gone {
		err = nil
	}
	return -1, err
}

// removeWithoutState removes a container whose state cannot be loaded for a reason.
func removeWithoutState(ctx context.Context, c process.Config, reason error) error {
	var errno unix.Errno
	switch {
	case errors.Is(reason, libcontainer.ErrNotExist):
	case errors.As(reason, &errno): // such as a lack of descriptors: it says nothing about the container
		return fmt.Errorf("container %q: read its state: %w", c.ID, reason)
	case c.Spec == nil:
		return fmt.Errorf("container %q: its bundle has no config.json of use, and its state cannot be read, "+
			"so what it made is unknown; when no process of it runs, remove %s: %w", c.ID, stateDir(c.Root, c.ID), reason)
	default:
		log.L.WithError(reason).WithField("container", c.ID).Warn("read container state; removing what it would have named")
	}
	return removeHalfMade(ctx, c)
}

// removeHalfMade removes a container whose shim died during Create.
func removeHalfMade(ctx context.Context, c process.Config) error {
	var errs []error
	if c.Spec != nil {
		config, err := translate.Cgroup(c)
		if err != nil {
			return fmt.Errorf("find the cgroup of container %q: %w", c.ID, err)
		}
		if m, err := manager.New(config); err != nil {
			errs = append(errs, err)
		} else if group := cgroup.New(m.GetPaths()); group.Exists() && mayRemove(m.GetPaths()) {
			// m.Exists would look in one hierarchy, where the shim may not have made the cgroup yet.
			if err := endCgroup(ctx, group, c.SystemdCgroup); err != nil {
				return err
			}
			errs = append(errs, m.Destroy())
		}
	}
	errs = append(errs, removeStateDir(stateDir(c.Root, c.ID)))
	return errors.Join(errs...)
}

// mayRemove guards against removing a cgroup of others: without a state, only the configuration names the cgroup.
func mayRemove(paths map[string]string) bool {
	for controller, p := range paths {
		// v1's hierarchies are mounted below the root, v2 at the root or, on a hybrid machine, at unified.
		if p == cgroupRoot || p == cgroupRoot+"/unified" || controller != "" && filepath.Dir(p) == cgroupRoot {
			return false // the root of a whole hierarchy
		}
	}
	return true
}

const cgroupRoot = "/sys/fs/cgroup" // where every distribution mounts it; see cgroups(7)

// removalReserve is how much of Remove's time a graceful stop leaves for the kill and the removal after it.
const removalReserve = 1500 * time.Millisecond

// stop sends init, which is not a child of this process, the stop signal, and waits for it to exit as long as s and ctx
// allow. The caller kills what is left, so failures here are only logged.
func stop(ctx context.Context, lc *libcontainer.Container, state *libcontainer.State, s process.Stop) {
	grace := s.Grace
	if end, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(end)-removalReserve)
	}
	status, err := lc.Status()
	if err != nil || grace <= 0 || status != libcontainer.Running && status != libcontainer.Paused {
		return // without a program nobody could handle the signal
	}
	logger := log.L.WithField("container", lc.ID())
	if err := signalInit(state, s.Signal); err != nil {
		logger.WithError(err).Warn("stop")
		return
	}
	if err := lc.Resume(); err != nil && !errors.Is(err, libcontainer.ErrNotPaused) {
		logger.WithError(err).Warn("stop: thaw")
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_ = awaitDeath(ctx, lc) // the caller kills it
}
