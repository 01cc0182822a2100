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
	// Create makes this directory first. That it is gone is the usual case: most shims have ended as asked.
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
	stop(ctx, lc, c.Stop)
	group := cgroup.New(state.CgroupPaths)
	if group.Exists() {
		if err := group.Kill(ctx); err != nil {
			return fmt.Errorf("kill the processes of container %q: %w", c.ID, err)
		}
	}
	// Init may be in no cgroup, as without root, or in another.
	if err := lc.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
		log.L.WithError(err).WithField("container", c.ID).Warn("kill init")
	}
	// On cgroup v2 frozen processes die without being thawed, and libcontainer takes a frozen cgroup for a paused
	// container even if it is empty.
	if err := group.Thaw(); err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	if err := awaitDeath(ctx, lc); err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	return destroy(ctx, lc, group, stateDir(c.Root, c.ID))
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

// awaitDeath waits until init is dead.
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

// removeWithoutState removes a container whose state cannot be loaded. If it has none, the shim died during Create.
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
	if c.Spec != nil {
		config, err := translate.Cgroup(c)
		if err != nil {
			return fmt.Errorf("find the cgroup of container %q: %w", c.ID, err)
		}
		m, err := manager.New(config)
		if err != nil {
			return err
		}
		// m.Exists would look in one hierarchy, where the shim may not have made the cgroup yet.
		if group := cgroup.New(m.GetPaths()); group.Exists() {
			if err := endCgroup(ctx, group, c.SystemdCgroup); err != nil {
				return err
			}
			if err := m.Destroy(); err != nil {
				return err
			}
		}
	}
	return removeStateDir(stateDir(c.Root, c.ID))
}

// removalReserve is how much of Remove's time a graceful stop leaves for the kill and the removal after it.
const removalReserve = 1500 * time.Millisecond

// stop sends init the stop signal, and waits for it to exit as long as s and ctx allow. The caller kills what is left.
func stop(ctx context.Context, lc *libcontainer.Container, s process.Stop) {
	grace := s.Grace
	if end, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(end)-removalReserve)
	}
	status, err := lc.Status()
	if err != nil || grace <= 0 || status != libcontainer.Running && status != libcontainer.Paused {
		return // without a program nobody could handle the signal
	}
	logger := log.L.WithField("container", lc.ID())
	if err := lc.Signal(s.Signal); err != nil {
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
