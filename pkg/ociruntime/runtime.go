// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	_ "github.com/opencontainers/cgroups/devices" // gives the cgroup managers their device rules
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/ociruntime/controlfile"
	"sandbox.internal/shim/pkg/ociruntime/execgroup"
	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/ociruntime/ocierrors"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// Runtime makes containers. It holds no state of theirs.
type Runtime struct {
	reaper   *reaper.Reaper
	launcher func() (*native.Program, error) // made by the first use that succeeds
	reaped   func() (*native.Program, error) // so is the init of containers that ask for one
	rcu      systemd.RCUWarmup

	execTimeout time.Duration
}

// execSetupTimeout bounds how long setting up an exec may take. The container controls parts of that: its cgroup may be
// frozen, or one of its file systems may not answer. With hardly any CPU time, it takes seconds.
const execSetupTimeout = 30 * time.Second

// New returns a Runtime; reaper leaves its children alone.
func New(reaper *reaper.Reaper) *Runtime {
	return &Runtime{
		reaper:      reaper,
		launcher:    keep(func() (*native.Program, error) { return native.New(launch.ProgramName) }),
		reaped:      keep(func() (*native.Program, error) { return native.NewInit("init") }),
		execTimeout: execSetupTimeout,
	}
}

// keep wraps f, which is called until it succeeds, or fails because the machine cannot do it; that result is kept.
func keep[T any](f func() (T, error)) func() (T, error) {
	var lock sync.Mutex
	var value T
	var err error
	kept := false
	return func() (T, error) {
		lock.Lock()
		defer lock.Unlock()
		if !kept {
			value, err = f()
			kept = err == nil || errdefs.IsNotImplemented(err)
		}
		return value, err
	}
}

// Create implements process.Runtime.
func (r *Runtime) Create(ctx context.Context, c process.Config, s *stdio.Streams) (process.RuntimeContainer, error) {
	if c.SystemdCgroup {
		if err := systemd.CheckPath(c.Spec.Linux.CgroupsPath); err != nil {
			return nil, err
		}
	}
	config, err := r.translate(c)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if config.Cgroups.Systemd {
		defer systemd.Connected()()
		r.rcu.Start()
		if err := systemd.Prepare(ctx, c.Spec.Linux.CgroupsPath, config.Cgroups); err != nil {
			return nil, err
		}
		if c.ExecLimits != nil {
			// libcontainer turns it into OOMPolicy=kill, with which systemd 253 and later end the scope on an OOM kill
			// in any cgroup in it. initCreated writes the file.
			config.Cgroups.Resources.Unified = maps.Clone(config.Cgroups.Resources.Unified)
			delete(config.Cgroups.Resources.Unified, oomGroup)
		}
	}
	if c.Checkpoint != "" {
		return r.prepare(c, config)
	}
	init, err := translate.Process(c.Spec.Process, s)
	if err != nil {
		return nil, err
	}
	init.Init, init.ExtraFiles = true, c.Files
	lc, err := libcontainer.Create(c.Root, c.ID, config)
	if err != nil {
		return nil, ocierrors.Create(ocierrors.Classify(err), c.Spec.Linux)
	}
	made, err := begin(c, lc)
	if err != nil {
		return nil, err
	}
	remove := made.removeMade
	created, err := r.initByLauncher(ctx, c, config, made, init, s)
	if reason := (unsupported{}); errors.As(err, &reason) && needsLauncher(c) != "" {
		err = launcherError(needsLauncher(c), reason.error, c.Spec.Process.Args)
	} else if errors.As(err, &reason) {
		log.G(ctx).WithField("container", c.ID).WithField("reason", reason.Error()).Info("init by libcontainer")
		if created, err = r.initByLibcontainer(ctx, c, config, made, init, s); err == nil {
			created.initReason = reason.Error()
		}
		if _, none := init.Pid(); err != nil && none != nil {
			// libcontainer v1.5.2 keeps an init that it could not fork, and panics when it is asked for the state.
			remove = made.removeDir
		}
	}
	if err == nil {
		return created, nil
	}
	err = ocierrors.Create(err, c.Spec.Linux)
	undo := process.UndoCreate(func() error {
		return r.undoCreate(made, remove)
	})
	return nil, errors.Join(err, undo)
}

// translate suspends the reaper around translate.Container: to read the mappings of a user namespace that the container
// joins, libcontainer starts a child and waits for it.
func (r *Runtime) translate(c process.Config) (*configs.Config, error) {
	defer r.reaper.Suspend()()
	return translate.Container(c)
}

// initByLibcontainer starts init with libcontainer.
func (r *Runtime) initByLibcontainer(
	ctx context.Context, c process.Config, config *configs.Config, made *creation, p *libcontainer.Process,
	s *stdio.Streams,
) (*container, error) {
	if own := *config.Cgroups; own.Systemd {
		if _, err := made.manager(&own); err != nil {
			return nil, err
		}
	}
	init, err := r.startByLibcontainer(ctx, made.lc, p, s)
	if _, unborn := p.Pid(); unborn == nil { // else systemd was not asked
		made.unit.Applied(err)
	}
	if err != nil {
		return nil, err
	}
	created, err := r.libcontainerInit(c, config, made, init)
	if err != nil {
		init.kill()
	}
	return created, err
}

// libcontainerInit returns the container of an init that libcontainer has started.
func (r *Runtime) libcontainerInit(
	c process.Config, config *configs.Config, made *creation, init *handle,
) (*container, error) {
	state, err := made.lc.State()
	if err != nil {
		return nil, err
	}
	created, err := r.newContainer(c, config, state.CgroupPaths)
	if err != nil {
		return nil, err
	}
	created.lc, created.creation, created.init = made.lc, made, init
	if config.RootlessCgroups && !created.cgroup.Exists() {
		created.setCgroup(cgroup.New(nil)) // on v2 libcontainer names even a cgroup that it was not allowed to make
	}
	// Nothing waits for init yet, so the pid is still init's.
	if created.initStage, err = statExe(init.pid); err != nil {
		return nil, err
	}
	return created, created.initCreated()
}

const oomGroup = "memory.oom.group"

// limitRest writes what libcontainer leaves out to the cgroup of a container that was created or restored.
func (c *container) limitRest() error {
	r := c.config.Spec.Linux.Resources
	if c.config.SystemdCgroup && c.config.ExecLimits != nil && r != nil && r.Unified[oomGroup] != "" { // see Create
		if err := cgroup.Write(c.cgroup.File(oomGroup), r.Unified[oomGroup]); err != nil {
			return ocierrors.Limit(err, r)
		}
	}
	if err := controlfile.WriteRest(c.cgroup, r); err != nil {
		return ocierrors.Limit(err, r)
	}
	controlfile.LimitDepth(c.config.ID, c.cgroup, r)
	return c.execGroups.Prepare()
}

// initCreated writes the remaining limits and opens init's pidfd, once init waits to be started.
func (c *container) initCreated() error {
	if err := c.limitRest(); err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(c.init.pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	c.initFD = os.NewFile(uintptr(fd), "pidfd")
	return nil
}

// newContainer returns a container without a process. Its cgroup has the given paths or, if paths is nil, those that
// config implies.
//
// The manager has its own copy of the configuration, since it writes the last values and the freezer's state to it,
// while libcontainer reads the original when it starts an exec.
func (r *Runtime) newContainer(
	c process.Config, config *configs.Config, paths map[string]string,
) (*container, error) {
	own, limits := *config.Cgroups, *config.Cgroups.Resources
	own.Resources = &limits
	m, err := manager.NewWithPaths(&own, paths)
	if err != nil {
		return nil, err
	}
	if own.Systemd {
		m = systemd.NewScope(m, &own)
	}
	made := &container{
		runtime: r, config: c, manager: m,
		ownsPIDs: config.Namespaces.IsPrivate(configs.NEWPID), libcontainerExec: make(chan struct{}, 1),
		filter: keep(func() (*launch.Filter, error) {
			cache := launch.FilterCache{Dir: filterDir(c.Root)}
			return cache.Filter(config.Seccomp, func() error { _, err := seccomp.InitSeccomp(config.Seccomp); return err })
		}),
	}
	made.setCgroup(cgroup.New(m.GetPaths()))
	return made, nil
}

// setCgroup sets the container's cgroup, before it has a process.
func (c *container) setCgroup(group *cgroup.Cgroup) {
	c.cgroup, c.execGroups = group, execgroup.New(group, c.config.ExecLimits)
}

// filterDir returns where the seccomp filters of all namespaces are kept. No namespace has such a name (containerd,
// pkg/identifiers).
func filterDir(root string) string { return filepath.Join(filepath.Dir(root), ".seccomp") }

// stateDir returns where libcontainer keeps the state of a container. id has been checked to be one path element.
func stateDir(root, id string) string { return filepath.Join(root, id) }
