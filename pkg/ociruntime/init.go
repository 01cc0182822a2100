// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/system"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/native"
	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/ociruntime/ocierrors"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/unixfile"
)

// execFifo is the file in a state directory that says that init waits to be started (runc libcontainer, refreshState).
const execFifo = "exec.fifo"

// unsupportedInitReason returns why the launcher cannot start p, the init of a container of config; "" if it can.
func unsupportedInitReason(c process.Config, config *configs.Config, p *libcontainer.Process) (reason string) {
	if reason := unsupportedReason(config, p); reason != "" {
		return reason
	}
	namespaces := config.Namespaces
	switch {
	case config.NoPivotRoot:
		return "no pivot_root"
	case len(config.TimeOffsets) > 0:
		return "offsets of a time namespace"
	case namespaces.PathOf(configs.NEWTIME) != "":
		return "time namespace of another"
	case namespaces.PathOf(configs.NEWNS) != "":
		return "mount namespace of another"
	case config.HasHook(configs.CreateContainer, configs.StartContainer, configs.Poststart):
		return "hooks in the container's namespaces"
	case config.HasHook(configs.Prestart, configs.CreateRuntime) && namespaces.PathOf(configs.NEWPID) != "":
		return "hooks, and the PID namespace of another" // these get the pid of a process that ends
	case len(c.Files) > 0:
		return "further descriptors"
	case c.Init && (p.Label != "" || config.ProcessLabel != ""):
		return "a label of SELinux, whose policy has no rule for the file of an init"
	case len(config.NetDevices) > 0 || len(config.Routes) > 0:
		return "network devices"
	}
	if namespaces.PathOf(configs.NEWPID) != "" && !launch.MountsProcOfPIDNamespace() {
		return "PID namespace of another, before Linux 6.17"
	}
	if !launch.HasMountSetattr() {
		return "no mount_setattr, before Linux 5.12"
	}
	for _, d := range config.Devices {
		if launch.HasPathOfRootfs(config, d.Path) {
			return "device with the path of the root file system"
		}
	}
	for _, m := range config.Mounts {
		if reason := launch.UnsupportedMount(config, m); reason != "" {
			return reason
		}
		// The kernel mounts cgroup v2 only for the owner of the cgroup namespace.
		if strings.HasPrefix(m.Device, "cgroup") && cgroups.IsCgroup2UnifiedMode() &&
			namespaces.Contains(configs.NEWUSER) && !namespaces.Contains(configs.NEWCGROUP) {
			return "mount of cgroup v2 for users of the container, without a cgroup namespace"
		}
	}
	return ""
}

// needsLauncher returns the setting that libcontainer would ignore, so that it must not start processes; "" for none.
func needsLauncher(c process.Config) string {
	switch {
	case c.Init:
		return "init"
	case c.TaskDir != "":
		return "host-rootfs.task-dir"
	}
	return ""
}

// launcherError returns the error of a process of such a container that the launcher did not start.
func launcherError(setting string, reason error, args []string) error {
	if errors.Is(reason, launch.ErrNotStarted) {
		return ocierrors.Start(reason, args)
	}
	return fmt.Errorf("%s: not possible with this process: %w: %w", setting, reason, errdefs.ErrFailedPrecondition)
}

// initByLauncher starts init with the launcher, or returns an unsupported error. In that case nothing is left of init
// except for what libcontainer.Create made, and mount points.
func (r *Runtime) initByLauncher(
	ctx context.Context, c process.Config, config *configs.Config, creation *creation, p *libcontainer.Process,
	s *stdio.Streams,
) (*container, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	launcher, err := r.launcher()
	var reaped *native.Program
	if err == nil && c.Init {
		reaped, err = r.reaped()
	}
	if err != nil {
		return nil, unsupported{err}
	}
	if reason := unsupportedInitReason(c, config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	made, err := r.newContainer(c, config, creation.paths)
	if err != nil {
		return nil, err
	}
	made.lc, made.creation = creation.lc, creation
	own, limits := *config.Cgroups, *config.Cgroups.Resources
	own.Resources = &limits
	group, err := creation.manager(&own)
	if err != nil {
		return nil, err
	}
	command, err := made.command(p, s)
	switch {
	case err != nil && needsLauncher(c) != "":
		return nil, err
	case err != nil:
		return nil, unsupported{err} // libcontainer reports it in the words that clients know
	}
	if c.Init && command.Filter != nil && command.Filter.BlocksInit() {
		return nil, unsupported{errors.New("a seccomp filter that forbids what an init does")}
	}
	i := &initLauncher{Init: launch.Init{Command: *command, Config: config, Reaped: reaped}, made: made, group: group}
	if c.Spec.Linux != nil {
		i.Devices = config.Devices[len(config.Devices)-len(c.Spec.Linux.Devices):] // specconv, createDevices
	}
	if err := i.prepare(); err != nil {
		return nil, err
	}
	run, proc, err := i.Start(ctx, launcher, r.reaper)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", err)
	case systemd.UnitExists(err):
		return nil, err // another container's
	case errors.Is(err, launch.ErrNotStarted):
		undo := process.Undo(func() error { return i.undo(ctx) })
		if undo != nil {
			return nil, errors.Join(err, undo)
		}
		return nil, unsupported{err}
	case err != nil:
		return nil, ocierrors.Start(err, p.Args)
	}
	made.held, made.init = run, newHandle(r.reaper, proc, proc.Pid)
	if err := i.finish(ctx, s); err != nil {
		return nil, errors.Join(err, run.Close())
	}
	return made, nil
}

// finish passes the streams to init, which waits to be started, and saves that state. If it fails, it kills init.
func (i *initLauncher) finish(ctx context.Context, s *stdio.Streams) error {
	init := i.made.init
	if err := init.started(ctx, s); err != nil {
		return err
	}
	err := i.saveState(init.pid)
	if err == nil {
		err = i.made.initCreated()
	}
	if err != nil {
		init.kill()
	}
	return err
}

// initLauncher starts one init.
type initLauncher struct {
	launch.Init
	made  *container
	group cgroups.Manager // makes the cgroup
}

// prepare makes the cgroup, unless systemd makes it with init in it, and sets what is called while init is set up.
func (i *initLauncher) prepare() error {
	config := i.Config
	apply := func(pid int) error {
		if err := i.group.Apply(pid); err != nil {
			return fmt.Errorf("unable to apply cgroup configuration: %w", err)
		}
		return nil
	}
	if config.Cgroups.Systemd {
		i.Forked = apply
	} else {
		const nobody = -1 // makes the cgroup and moves no process (cgroups/utils.go, WriteCgroupProc)
		if err := apply(nobody); err != nil {
			return err
		}
		i.made.joinCgroups(&i.Command, nil)
	}
	var err error
	if i.CgroupMounts, err = cgroupMounts(config, i.group.GetPaths()); err != nil {
		return err
	}
	i.MountedOnce = config.HasHook(configs.Prestart, configs.CreateRuntime)
	i.Mounted = i.mounted
	return nil
}

// undo removes the cgroup, so that libcontainer can make it again.
func (i *initLauncher) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTimeout, errOccupied)
	defer cancel()
	return i.made.creation.removeCgroup(ctx)
}

// mounted sets the limits and runs the hooks that libcontainer runs at this point (process_linux.go, procHooks).
func (i *initLauncher) mounted(pid int) error {
	if err := i.group.Set(i.Config.Cgroups.Resources); err != nil {
		return fmt.Errorf("error setting cgroup config for procHooks process: %w", err)
	}
	if !i.MountedOnce {
		return nil
	}
	state, err := i.made.lc.OCIState()
	if err != nil {
		return err
	}
	state.Pid, state.Status = pid, specs.StateCreating
	defer i.made.runtime.reaper.Suspend()() // hooks are children of the shim
	for _, name := range []configs.HookName{configs.Prestart, configs.CreateRuntime} {
		if err := i.Config.Hooks.Run(name, state); err != nil {
			return err
		}
	}
	return nil
}

// saveState writes the state as libcontainer does, for runc's commands and for what libcontainer still does itself
// (container_linux.go, currentState).
func (i *initLauncher) saveState(pid int) error {
	state, err := i.made.lc.State()
	if err != nil {
		return err
	}
	stat, err := system.Stat(pid)
	if err != nil {
		return err
	}
	state.InitProcessPid, state.InitProcessStartTime, state.Created = pid, stat.StartTime, time.Now().UTC()
	for fd := range 3 {
		name := os.DevNull // which init has until there is a terminal
		if i.Terminal == nil || i.Stdio[fd] != nil {
			if name, err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil {
				return err
			}
		}
		state.ExternalDescriptors = append(state.ExternalDescriptors, name)
	}
	for _, t := range configs.NamespaceTypes() {
		if ns := (configs.Namespace{Type: t}); configs.IsNamespaceSupported(t) {
			state.NamespacePaths[t] = ns.GetPath(pid)
		}
	}
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	dir := stateDir(i.made.config.Root, i.made.config.ID)
	fifo := filepath.Join(dir, execFifo)
	if err := unix.Mkfifo(fifo, 0o622); err != nil {
		return &os.PathError{Op: "mkfifo", Path: fifo, Err: err}
	}
	return unixfile.Write(filepath.Join(dir, "state.json"), text)
}

// cgroupMounts returns what a mount of type cgroup shows on cgroup v1 (rootfs_linux.go, getCgroupMounts).
func cgroupMounts(config *configs.Config, paths map[string]string) (list []launch.CgroupMount, err error) {
	isCgroup := func(m *configs.Mount) bool { return m.Device == "cgroup" }
	if cgroups.IsCgroup2UnifiedMode() || !slices.ContainsFunc(config.Mounts, isCgroup) {
		return nil, nil
	}
	mounts, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		return nil, err
	}
	shims, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		name := filepath.Base(m.Mountpoint)
		one := launch.CgroupMount{Name: name, Controllers: strings.Split(name, ",")}
		if name == "systemd" {
			one.Controllers = []string{cgroups.CgroupNamePrefix + name}
		}
		for _, subsystem := range m.Subsystems {
			if dir := cmp.Or(paths[subsystem], paths[cgroups.CgroupNamePrefix+subsystem]); dir != "" {
				one.Directory = dir
			}
		}
		if one.Directory == "" { // a hierarchy in which init stays where the shim is
			dir, err := m.GetOwnCgroup(shims)
			if err != nil {
				return nil, err
			}
			below, err := filepath.Rel(m.Root, dir)
			if err != nil {
				return nil, err
			}
			one.Directory = path.Join(m.Mountpoint, below)
		}
		list = append(list, one)
	}
	return list, nil
}

// libcontainer returns the container for operations that libcontainer itself performs.
func (c *container) libcontainer() (*libcontainer.Container, error) {
	if c.held == nil {
		return c.lc, nil
	}
	return libcontainer.Load(c.config.Root, c.config.ID)
}
