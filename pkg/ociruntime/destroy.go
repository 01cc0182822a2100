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
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
)

// destroy is destroy while the reaper is held: poststop hooks are children that
// libcontainer waits for.
func (r *Runtime) destroy(lc *libcontainer.Container) error {
	defer r.reaper.Suspend()()
	return destroy(lc)
}

// discard is destroy for what nobody will destroy again: where the cgroup is
// gone and systemd alone is silent, it removes the state directory dir as well.
// The unit ends with its cgroup.
func (r *Runtime) discard(lc *libcontainer.Container, dir string) error {
	defer r.reaper.Suspend()()
	err := removeCgroup(lc)
	switch {
	case err == nil:
		return removeState(lc, lc.Destroy)
	case errors.Is(err, systemd.ErrSilent):
		return errors.Join(err, removeState(lc, func() error { return os.RemoveAll(dir) }))
	}
	return err
}

// destroy removes cgroup and state directory, then runs the poststop hooks.
// What is gone already is no error.
func destroy(lc *libcontainer.Container) error {
	if err := removeCgroup(lc); err != nil {
		return err
	}
	return removeState(lc, lc.Destroy)
}

// removeState lets remove remove the state directory, then runs the poststop
// hooks.
//
// libcontainer would run the hooks itself, but end at the first that fails and
// report the container as not removed, although it is: for ever, since every
// further try fails alike. The specification wants a failing poststop hook
// logged, and the others run (runtime.md, Lifecycle).
func removeState(lc *libcontainer.Container, remove func() error) error {
	state, stateErr := lc.OCIState()
	config := lc.Config()
	hooks := config.Hooks[configs.Poststop]
	delete(config.Hooks, configs.Poststop) // the map is the container's own
	if err := remove(); err != nil && !errors.Is(err, libcontainer.ErrNotExist) {
		if len(hooks) > 0 {
			config.Hooks[configs.Poststop] = hooks // for the next try
		}
		return err
	}
	logger := log.L.WithField("container", lc.ID())
	if len(hooks) > 0 && stateErr != nil {
		logger.WithError(stateErr).Error("poststop hooks were not run: no state to give them")
		return nil
	}
	for i, hook := range hooks {
		state.Status = specs.StateStopped
		if err := hook.Run(state); err != nil {
			logger.WithError(err).WithField("hook", i).Error("poststop hook")
		}
	}
	return nil
}

// destroyTimeout bounds how long a cgroup that does not get empty keeps a
// Delete. CRI gives one 10 s in all (containerd internal/cri/server, events.go),
// of which the output may have had half.
const destroyTimeout = 3 * time.Second

// unitTimeout is what systemd has at least of that, when the cgroup took most.
const unitTimeout = time.Second

var errOccupied = fmt.Errorf("not empty after %v: %w", destroyTimeout, errdefs.ErrFailedPrecondition)

// removeCgroup is endCgroup for what libcontainer knows of a container.
func removeCgroup(lc *libcontainer.Container) error {
	state, err := lc.State()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), destroyTimeout, errOccupied)
	defer cancel()
	return endCgroup(ctx, cgroup.New(state.CgroupPaths), state.Config.Cgroups.Systemd)
}

// endCgroup ends what is left in a container's cgroup, as systemd does with a
// scope that stops, and removes the cgroup with those nested in it. libcontainer
// kills only where the container shares its PID namespace, so that a process
// that was moved in from outside would keep the cgroup; and it says of no
// process why it is still there.
//
// A scope ends with its cgroup. That libcontainer stops it as well makes sure
// that its name is free when it returns; where systemd does not answer, it would
// not return.
func endCgroup(ctx context.Context, cg *cgroup.Cgroup, isScope bool) error {
	if cg.Exists() {
		if err := cg.Kill(ctx, unix.SIGKILL); err != nil {
			return err
		}
		if err := cg.Remove(ctx); err != nil {
			return err
		}
	}
	if !isScope {
		return nil
	}
	left := destroyTimeout
	if end, ok := ctx.Deadline(); ok {
		left = min(left, max(time.Until(end), unitTimeout))
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), left, systemd.ErrSilent)
	defer cancel()
	if err := systemd.Await(ctx); err != nil {
		return fmt.Errorf("end the unit of cgroup %s: %w", cg, err)
	}
	return nil
}
