// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/inspect"
	filter "sandbox.internal/shim/pkg/launcher/seccomp"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// container implements process.RuntimeContainer. Signals, freezing and thawing, which must work at any time, do not use
// lc: libcontainer holds a lock of it while it starts a process.
type container struct {
	runtime   *Runtime
	config    process.Config
	lc        *libcontainer.Container
	plain     cgroups.Manager // libcontainer's own manager of the cgroup
	manager   cgroups.Manager // plain or, with systemd's driver, a systemd.Scope
	cgroup    *cgroup.Cgroup
	ownsPIDs  bool                  // in a PID namespace of its own
	resources *specs.LinuxResources // after the last Update. Guarded by the operation lock of init.

	ownDevices int // rules of config.json, which come before those of every container

	init *handle // nil when it is restored, as the next one
	gate gate    // at which init waits for Start

	othersUnit bool // systemd refused the scope because another's has the name: the cgroup is not the container's

	launchMu sync.Mutex
	// +checklocks:launchMu
	launch inspect.Launch // how processes were started

	former  bool       // a former program has made the container
	loading sync.Mutex // held while lc, plain and manager of such a container are loaded

	libcontainerExec chan struct{} // holds one while libcontainer starts an exec: a lock with a context

	filter func() (*filter.Filter, error) // the seccomp filter of init and execs, looked up by the first

	lastExecGroup atomic.Int64 // number in the name of the last cgroup of an exec
}

// newContainer makes a container without a process: its state directory. It refuses a cgroup in which a process is, for
// which libcontainer looks on v1 in the hierarchy of devices alone (runc libcontainer/factory_linux.go, Create).
func (r *Runtime) newContainer(c process.Config, config *configs.Config) (*container, error) {
	lc, err := libcontainer.Create(c.Root, c.ID, config)
	if err != nil {
		return nil, createError(classify(err), c.Spec.Linux)
	}
	launch := inspect.Launch{Init: inspect.ByLauncher}
	if c.Checkpoint != "" {
		launch.Init = inspect.ByCRIU
	}
	made := r.container(c, launch)
	made.lc, made.resources = lc, cmp.Or(c.Spec.Linux.Resources, &specs.LinuxResources{})
	made.ownsPIDs, made.ownDevices = config.Namespaces.IsPrivate(configs.NEWPID), len(made.resources.Devices)
	if err = made.useCgroupOfState(); err == nil {
		if pids, _ := made.cgroup.Procs(); len(pids) > 0 {
			err = fmt.Errorf("linux.cgroupsPath %q: cgroup %s is not empty: it has process %d: %w",
				c.Spec.Linux.CgroupsPath, made.cgroup, pids[0], errdefs.ErrFailedPrecondition)
		}
	}
	if err != nil {
		return nil, errors.Join(err, process.UndoCreate(made.removeDir))
	}
	return made, nil
}

// container returns a container of which nothing is made yet.
func (r *Runtime) container(c process.Config, launch inspect.Launch) *container {
	made := &container{runtime: r, launch: launch, config: c, libcontainerExec: make(chan struct{}, 1)}
	root := c.Root // not c, which has the specification
	made.filter = sync.OnceValues(func() (*filter.Filter, error) { return r.filters.of(made.lc.Config().Seccomp, root) })
	return made
}

// filters has the last seccomp filter, which most containers have, with a profile that they have too
// (translate.Container).
type filters struct {
	mu sync.Mutex
	// +checklocks:mu
	profile *configs.Seccomp
	// +checklocks:mu
	filter *filter.Filter
}

// of returns the filter of a profile, from the cache below root if it is another one.
func (f *filters) of(profile *configs.Seccomp, root string) (_ *filter.Filter, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.filter != nil && f.profile == profile {
		return f.filter, nil
	}
	cache := filter.Cache{Dir: filterDir(root), Warn: func(err error) {
		log.L.WithError(err).WithField("directory", filterDir(root)).
			Warn("a seccomp filter is made anew: its cache cannot be used")
	}}
	made, err := cache.Filter(profile, func() error { _, err := seccomp.InitSeccomp(profile); return err })
	if err == nil {
		f.profile, f.filter = profile, made
	}
	return made, err
}

// use loads what only some operations need of a container that a former program has made, before the first of them.
func (c *container) use() (err error) {
	c.loading.Lock()
	defer c.loading.Unlock()
	if c.lc != nil {
		return nil
	}
	if c.lc, err = c.load(); err == nil {
		err = c.useCgroupOfState()
	}
	if err != nil {
		c.lc = nil
	}
	return err
}

// useCgroupOfState sets the cgroup of the container to that of libcontainer's state. The manager gets a copy of the
// configuration, to which it writes; libcontainer reads the original when it starts an exec.
func (c *container) useCgroupOfState() error {
	state, err := c.lc.State()
	if err != nil {
		return err
	}
	own, limits := *state.Config.Cgroups, *state.Config.Cgroups.Resources
	own.Resources = &limits
	if c.plain, err = manager.NewWithPaths(&own, maps.Clone(state.CgroupPaths)); err != nil { // Destroy removes paths
		return err
	}
	c.manager = c.plain
	if own.Systemd {
		c.manager = systemd.NewScope(c.plain, &own)
	}
	if c.cgroup == nil {
		c.cgroup = cgroup.New(state.CgroupPaths)
	}
	return nil
}

// startInit starts the init of the container, and writes the remaining limits. If it fails, init is dead.
func (c *container) startInit(ctx context.Context, s *stdio.Streams) error {
	p, err := translate.Process(c.config.Spec.Process, s)
	if err != nil {
		return err
	}
	p.Init, p.ExtraFiles = true, c.config.Files
	err = c.start(ctx, p, func(by starter) (err error) {
		c.init, c.gate, err = by.startInit(ctx, c, p, s)
		return err
	})
	if err != nil {
		c.othersUnit = systemd.UnitExists(err)
		return err
	}
	if err = c.limitRest(); err != nil {
		c.init.kill()
	}
	return err
}

// limitRest writes what libcontainer and prepareSystemd leave out to the cgroup of a new or restored container.
func (c *container) limitRest() error {
	if group := c.resources.Unified[oomGroup]; c.config.SystemdCgroup && c.config.ExecLimits != nil && group != "" {
		if err := cgroup.Write(c.cgroup.File(oomGroup), group); err != nil {
			return resourcesError(err, nil)
		}
	}
	if err := c.cgroup.LimitDepth(); err != nil { // an old kernel; a shim without root
		log.L.WithError(err).WithField("container", c.config.ID).Debug("cgroups may be nested without limit")
	}
	return c.prepareExecGroups()
}

func (c *container) Cgroup() *cgroup.Cgroup { return c.cgroup }

func (c *container) Pause() error  { return c.freeze(cgroups.Frozen) }
func (c *container) Resume() error { return c.freeze(cgroups.Thawed) }

func (c *container) freeze(to cgroups.FreezerState) error {
	if err := c.use(); err != nil {
		return err
	}
	return c.manager.Freeze(to)
}

func (c *container) KeepCPUSet(ctx context.Context, cpus, mems string) error {
	if err := c.use(); err != nil {
		return err
	}
	if s, ok := c.manager.(*systemd.Scope); ok {
		return s.SetCPUSet(ctx, cpus, mems)
	}
	return nil
}

func (c *container) Start() error {
	if err := c.gate.open(); err != nil {
		return err
	}
	// runc's commands take a container without this file for running. The program runs by now: no failed start.
	if err := os.Remove(c.fifo()); err != nil {
		log.L.WithError(err).WithField("container", c.config.ID).Warn("runc's commands take the container for created")
	}
	return nil
}

// fifo is the file in the state directory that says that init waits to be started (runc libcontainer, refreshState).
func (c *container) fifo() string { return filepath.Join(c.dir(), "exec.fifo") }

func (c *container) Init() process.Handle { return c.init }

// load returns the container as its state on disk describes it.
func (c *container) load() (*libcontainer.Container, error) {
	return libcontainer.Load(c.config.Root, c.config.ID)
}
