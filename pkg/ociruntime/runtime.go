// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package ociruntime runs containers with libcontainer, the library of runc, in the shim's own process, and implements
// process.Runtime. Only this package and those below it import libcontainer, whose interface is not stable
// (docs/decisions/0001). The state directory of a container is libcontainer's own, so runc's commands work on it.
//
// pkg/launcher starts inits and execs if it supports what they ask for (docs/decisions/0004, 0015), otherwise
// libcontainer does, by a sealed copy of this program (CVE-2019-5736; initreexec). Both make children of the shim, so
// the reaper is suspended meanwhile: the callee waits for short-lived ones.
package ociruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	_ "github.com/opencontainers/cgroups/devices" // gives the cgroup managers their device rules
	"github.com/opencontainers/runc/libcontainer/configs"

	"sandbox.internal/shim/pkg/launcher"
	"sandbox.internal/shim/pkg/ociruntime/criu"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// Runtime makes containers. It holds no state of theirs.
type Runtime struct {
	reaper   *reaper.Reaper
	launcher *launcherStarter
	rcu      systemd.RCUWarmup

	execTimeout time.Duration
	filters     filters
}

// execSetupTimeout bounds the set-up of an exec, parts of which the container controls. With hardly any CPU time, it
// takes seconds.
const execSetupTimeout = 30 * time.Second

// New returns a Runtime; reaper leaves its children alone.
func New(reaper *reaper.Reaper) *Runtime {
	made := sync.OnceValues(func() (*launcher.Launcher, error) {
		return launcher.New("containerd-shim-sandbox-v1", reaper) // which begins the names of its files in /proc
	})
	return &Runtime{reaper: reaper, launcher: &launcherStarter{reaper, made}, execTimeout: execSetupTimeout}
}

// Create implements process.Runtime.
func (r *Runtime) Create(ctx context.Context, c process.Config, s *stdio.Streams) (process.RuntimeContainer, error) {
	config, err := r.translate(c)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if config.Cgroups.Systemd {
		defer systemd.Connected()()
		if err := r.prepareSystemd(ctx, c, config); err != nil {
			return nil, err
		}
	}
	isRestore := c.Checkpoint != ""
	if isRestore {
		if err := cmp.Or(criu.Find(c.CriuPath), criu.CheckImage(c.Checkpoint)); err != nil {
			return nil, err
		}
	}
	created, err := r.newContainer(c, config)
	if err != nil {
		return nil, err
	}
	if isRestore {
		return created, nil
	}
	if err := created.startInit(ctx, s); err != nil {
		created.closeFiles()
		return nil, errors.Join(createError(err, c.Spec.Linux), process.UndoCreate(created.undoCreate))
	}
	created.config.Spec = nil // nobody needs it any more, nor these, which are in libcontainer's state
	config.Mounts, config.Devices, config.ReadonlyPaths, config.MaskPaths = nil, nil, nil, nil
	return created, nil
}

// translate suspends the reaper: to read the mappings of a user namespace that the container joins, libcontainer starts
// a child and waits for it.
func (r *Runtime) translate(c process.Config) (*configs.Config, error) {
	defer r.reaper.Suspend()()
	return translate.Container(c)
}

const oomGroup = "memory.oom.group"

// prepareSystemd prepares systemd for a scope, and config for systemd.
func (r *Runtime) prepareSystemd(ctx context.Context, c process.Config, config *configs.Config) error {
	r.rcu.Start()
	if err := systemd.Prepare(ctx, c.Spec.Linux.CgroupsPath, config.Cgroups); err != nil {
		return err
	}
	if c.ExecLimits != nil {
		// libcontainer turns it into OOMPolicy=kill, with which systemd 253 and later end the scope on an OOM kill in any
		// cgroup in it. limitRest writes the file.
		config.Cgroups.Resources.Unified = maps.Clone(config.Cgroups.Resources.Unified)
		delete(config.Cgroups.Resources.Unified, oomGroup)
	}
	return nil
}

// filterDir returns where the seccomp filters of all namespaces are kept.
func filterDir(root string) string { return filepath.Join(filepath.Dir(root), ".seccomp") }

// stateDir returns where libcontainer keeps the state of a container. id has been checked to be one path element.
func stateDir(root, id string) string { return filepath.Join(root, id) }
