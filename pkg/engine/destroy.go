// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// destroy is destroy while the reaper is held: poststop hooks are children that
// libcontainer waits for.
func (e *Engine) destroy(lc *libcontainer.Container) error {
	defer e.reaper.Hold()()
	return destroy(lc)
}

// destroy removes cgroup and state directory, then runs the poststop hooks.
// What is gone already is no error.
//
// libcontainer would run the hooks itself, but end at the first that fails and
// report the container as not removed, although it is: for ever, since every
// further try fails alike. The specification wants a failing poststop hook
// logged, and the others run (runtime.md, Lifecycle).
func destroy(lc *libcontainer.Container) error {
	state, stateErr := lc.OCIState()
	config := lc.Config()
	hooks := config.Hooks[configs.Poststop]
	delete(config.Hooks, configs.Poststop) // the map is the container's own
	if err := lc.Destroy(); err != nil && !errors.Is(err, libcontainer.ErrNotExist) {
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
