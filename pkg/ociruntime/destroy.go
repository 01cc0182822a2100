// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/utils"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
)

func (c *container) KillRemaining(ctx context.Context) error {
	if c.ownsPIDs {
		return nil
	}
	return c.cgroup.Kill(ctx)
}

func (c *container) Destroy() error {
	if err := c.destroy(); err != nil {
		return err
	}
	c.closeFiles()
	return nil
}

func (c *container) destroy() error {
	// libcontainer does not destroy a container whose cgroup is frozen, even if it is empty.
	if err := c.cgroup.Thaw(); err != nil {
		return err
	}
	if c.former { // it may have been loaded while it was frozen, and libcontainer would look for a frozen cgroup again
		c.loading.Lock()
		c.lc = nil
		c.loading.Unlock()
	}
	if err := c.use(); errors.Is(err, libcontainer.ErrNotExist) {
		return endCgroup(context.Background(), c.cgroup, false) // somebody has removed the state
	} else if err != nil {
		return err
	}
	defer c.runtime.reaper.Suspend()() // libcontainer waits for the poststop hooks, which are children of the shim
	return destroy(context.Background(), c.lc, c.cgroup, c.dir())
}

func (c *container) Discard() error {
	defer c.closeFiles()
	return c.undoCreate()
}

// undoCreate removes what a failed Create has made: the cgroup with all processes in it, and the state directory; then
// it runs the poststop hooks. If only systemd is silent, it removes the directory: the unit ends with its cgroup.
func (c *container) undoCreate() error {
	if c.othersUnit {
		return removeState(c.lc, c.dir(), c.removeDir)
	}
	err := c.destroy()
	if errors.Is(err, systemd.ErrSilent) {
		err = errors.Join(err, removeState(c.lc, c.dir(), c.removeDir))
	}
	return err
}

// closeFiles closes the gate. It may be called again.
func (c *container) closeFiles() {
	if c.gate != nil {
		c.gate.close()
	}
}

// removeCgroup removes the cgroup and the unit of an init that was not started, so that libcontainer can make them.
func (c *container) removeCgroup() error {
	isScope := c.lc.Config().Cgroups.Systemd
	if isScope {
		defer systemd.Connected()()
	}
	if err := endCgroup(context.Background(), c.cgroup, isScope); err != nil {
		return err
	}
	return c.plain.Destroy()
}

func (c *container) removeDir() error { return removeStateDir(c.dir()) }

func (c *container) dir() string { return stateDir(c.config.Root, c.config.ID) }

// destroy removes the cgroup cg and the state directory dir, if they are there, and then runs the poststop hooks.
func destroy(ctx context.Context, lc *libcontainer.Container, cg *cgroup.Cgroup, dir string) error {
	isScope := lc.Config().Cgroups.Systemd
	if isScope {
		defer systemd.Connected()()
	}
	if err := endCgroup(ctx, cg, isScope); err != nil {
		return err
	}
	return removeState(lc, dir, lc.Destroy)
}

// removeState calls remove, which removes dir, the state directory, and then runs the poststop hooks. The specification
// wants each run, and errors logged (runtime.md, Lifecycle); libcontainer would report the first as a failed removal.
func removeState(lc *libcontainer.Container, dir string, remove func() error) error {
	if err := criu.DetachRoot(dir); err != nil {
		return err
	}
	config := lc.Config()
	hooks := config.Hooks[configs.Poststop]
	delete(config.Hooks, configs.Poststop) // the map is the container's own
	if err := remove(); err != nil && !errors.Is(err, libcontainer.ErrNotExist) {
		if len(hooks) > 0 {
			config.Hooks[configs.Poststop] = hooks // for the next try
		}
		return err
	}
	bundle, annotations := utils.Annotations(config.Labels)
	state := &specs.State{
		Version: specs.Version, ID: lc.ID(), Status: specs.StateStopped, Bundle: bundle, Annotations: annotations,
	}
	for i, hook := range hooks {
		if err := hook.Run(state); err != nil {
			log.L.WithError(err).WithField("container", lc.ID()).WithField("hook", i).Error("poststop hook")
		}
	}
	return nil
}

func removeStateDir(dir string) error {
	if err := criu.DetachRoot(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

const (
	// destroyTimeout bounds how long Delete waits for a cgroup to become empty. CRI gives Delete 10 s (containerd
	// internal/cri/server, events.go), of which the output may have taken six or seven.
	destroyTimeout = 3 * time.Second
	unitTimeout    = time.Second // the least that systemd gets of it
)

var errOccupied = fmt.Errorf("not empty after %v: %w", destroyTimeout, errdefs.ErrFailedPrecondition)

// endCgroup kills what is left in a container's cgroup, as systemd does when a scope stops, and removes the cgroup with
// those below it, within destroyTimeout and until ctx ends. A process that was moved in from outside, which
// libcontainer does not kill, would keep it alive.
//
// A scope ends with its cgroup. libcontainer then also stops the unit, so that its name is free; that call would never
// return if systemd does not answer, so systemd is asked first.
func endCgroup(ctx context.Context, cg *cgroup.Cgroup, isScope bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTimeout, errOccupied)
	defer cancel()
	if cg.Exists() {
		if err := cg.Kill(ctx); err != nil {
			return err
		}
		if err := cg.Remove(ctx); err != nil {
			return err
		}
	}
	if !isScope {
		return nil
	}
	end, _ := ctx.Deadline()
	left := max(time.Until(end), unitTimeout)
	ctx, cancel = context.WithTimeoutCause(context.WithoutCancel(ctx), left, systemd.ErrSilent)
	defer cancel()
	if err := systemd.Await(ctx); err != nil {
		return fmt.Errorf("end the unit of cgroup %s: %w", cg, err)
	}
	return nil
}
