// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	json "github.com/go-json-experiment/json/v1"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/system"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/launcher"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
	"sandbox.internal/shim/pkg/unixfile"
)

// launcherStarter starts processes with pkg/launcher, without a Go program between the shim and them.
type launcherStarter struct {
	reaper   *reaper.Reaper
	launcher func() (*launcher.Launcher, error) // made by the first use
}

// startInit implements starter. If the error is unsupported, mount points may be left.
func (l *launcherStarter) startInit(
	ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams,
) (*handle, gate, error) {
	made, err := l.launcher()
	if err != nil {
		return nil, nil, unsupported{err}
	}
	i, err := c.initCommand(p)
	if err != nil {
		return nil, nil, err
	}
	if err := c.prepareInit(i); err != nil {
		return nil, nil, err
	}
	child, err := made.Create(ctx, i)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, fmt.Errorf("interrupted: %w", err)
	case systemd.UnitExists(err):
		return nil, nil, err
	case errors.Is(err, launcher.ErrNotStarted):
		if undo := process.Undo(c.removeCgroup); undo != nil {
			return nil, nil, errors.Join(err, undo)
		}
		return nil, nil, unsupported{err}
	case err != nil:
		return nil, nil, startError(err, p.Args)
	}
	init := newHandle(l.reaper, child.Process, child.Pid)
	err = init.started(ctx, s)
	if err == nil {
		if err = c.saveState(i, init.pid); err != nil {
			init.kill()
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, child.Close())
	}
	return init, held{child}, nil
}

// held is the gate of an init that the launcher holds. It opens when the program runs.
type held struct{ init *launcher.Held }

func (h held) open() error { return h.init.Resume() }
func (h held) close()      { _ = h.init.Close() } // nothing waits there any more

func (l *launcherStarter) startExec(
	ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams, group *execGroup,
) (*handle, error) {
	made, err := l.launcher()
	if err != nil {
		return nil, unsupported{err}
	}
	if c.config.Checkpoint != "" {
		return nil, unsupported{errors.New("the container was restored")}
	}
	command, err := c.command(p)
	if err != nil {
		return nil, err
	}
	if command.Target, err = c.init.pidfd(); err != nil {
		return nil, startError(err, p.Args)
	}
	defer command.Target.Close() //nolint:errcheck // nothing was written
	c.joinCgroups(command, group)
	if group != nil {
		command.Ready = group.limitProcesses
	}
	child, err := made.Exec(ctx, command)
	if errors.Is(err, launcher.ErrNotJoined) && group == nil && c.joinInit(command) {
		child, err = made.Exec(ctx, command)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", err)
	case errors.Is(err, launcher.ErrNotJoined) && !cgroups.IsCgroup2UnifiedMode():
		return nil, unsupported{err} // on hybrid libcontainer does without the v2 hierarchy
	case err != nil:
		if ended, _ := cgroup.HasEnded(int(command.Target.Fd())); ended { // so may its cgroup be gone
			err = fmt.Errorf("%w: %w", err, unix.ESRCH)
		}
		return nil, startError(err, p.Args)
	}
	h := newHandle(l.reaper, child, child.Pid)
	return h, h.started(ctx, s)
}

// prepareInit makes the cgroup, unless systemd makes it with init in it, and sets what is called while init is set up.
func (c *container) prepareInit(i *launcher.Container) error {
	config := c.lc.Config()
	apply := func(pid int) error {
		if err := c.plain.Apply(pid); err != nil {
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
		c.joinCgroups(&i.Process, nil)
	}
	var err error
	if i.CgroupMounts, err = translate.CgroupMounts(&config, c.plain.GetPaths()); err != nil {
		return err
	}
	i.Mounted = c.mounted
	return nil
}

// mounted sets the limits and runs the hooks that libcontainer runs at this point (process_linux.go, procHooks).
func (c *container) mounted(pid int) error {
	config := c.lc.Config()
	limits := *config.Cgroups.Resources // of which the manager writes to its own copy
	if err := c.plain.Set(&limits); err != nil {
		return fmt.Errorf("error setting cgroup config for procHooks process: %w", err)
	}
	if !config.HasHook(configs.Prestart, configs.CreateRuntime) {
		return nil
	}
	state, err := c.lc.OCIState()
	if err != nil {
		return err
	}
	state.Pid, state.Status = pid, specs.StateCreating
	defer c.runtime.reaper.Suspend()() // hooks are children of the shim
	for _, name := range []configs.HookName{configs.Prestart, configs.CreateRuntime} {
		if err := config.Hooks.Run(name, state); err != nil {
			return err
		}
	}
	return nil
}

// saveState writes the state as libcontainer does, for runc's commands and for what libcontainer still does itself
// (container_linux.go, currentState).
func (c *container) saveState(i *launcher.Container, pid int) error {
	state, err := c.lc.State()
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
	fifo := c.fifo()
	if err := unix.Mkfifo(fifo, 0o622); err != nil {
		return &os.PathError{Op: "mkfifo", Path: fifo, Err: err}
	}
	return unixfile.Write(filepath.Join(filepath.Dir(fifo), "state.json"), text)
}

// initCommand is p, the init, for the launcher. The error is unsupported if the launcher cannot start it.
func (c *container) initCommand(p *libcontainer.Process) (*launcher.Container, error) {
	config := c.lc.Config()
	if reason := translate.UnsupportedInit(c.config, &config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	process, err := c.command(p)
	if err != nil {
		return nil, err
	}
	i := translate.LauncherContainer(&config)
	i.Process, i.Reaped = *process, c.config.Init
	if reason := i.Unsupported(); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	return i, nil
}

// command is p for the launcher. The error is as that of initCommand.
func (c *container) command(p *libcontainer.Process) (*launcher.Process, error) {
	config := c.lc.Config()
	if reason := translate.UnsupportedProcess(&config, p); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	cmd, err := translate.LauncherProcess(&config, p)
	if err != nil {
		return nil, err
	}
	if !config.NoNewKeyring {
		cmd.Keyring = "_ses." + c.config.ID
	}
	if config.Seccomp != nil {
		if cmd.Filter, err = c.filter(); err != nil {
			return nil, unsupported{err}
		}
	}
	if reason := cmd.Unsupported(); reason != "" {
		return nil, unsupported{errors.New(reason)}
	}
	return cmd, nil
}

// joinCgroups sets which cgroups the process joins: those of group, or if that is nil, the container's.
func (c *container) joinCgroups(cmd *launcher.Process, group *execGroup) {
	paths := c.manager.GetPaths()
	freezer := paths["freezer"] // the container's: thawing it thaws those below
	if group != nil {
		paths = group.paths
	}
	joined := launcher.Cgroups{Unified: paths[""]}
	if !cgroups.IsCgroup2UnifiedMode() {
		joined.Freezer = freezer
		for name, dir := range paths {
			if name != "" && !slices.Contains(joined.Tasks, dir) {
				joined.Tasks = append(joined.Tasks, dir)
			}
		}
		slices.Sort(joined.Tasks)
	}
	cmd.Cgroups = joined
}

// joinInit sets that the process joins the cgroup of init, if that is another one on v2: a container that makes cgroups
// may have left its own to controllers (libcontainer's process_linux.go, addIntoCgroupV2).
func (c *container) joinInit(cmd *launcher.Process) bool {
	if !cgroups.IsCgroup2UnifiedMode() {
		return false
	}
	paths, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", c.init.pid))
	dir := fs2.UnifiedMountpoint + paths[""]
	if err != nil || dir == cmd.Cgroups.Unified {
		return false
	}
	cmd.Cgroups.Unified = dir
	return true
}
