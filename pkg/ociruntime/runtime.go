// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // gives the cgroup managers their device rules
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/ociruntime/systemd"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/reaper"
	"sandbox.internal/shim/pkg/stdio"
)

// Runtime makes containers. It holds no state of theirs.
type Runtime struct {
	reaper   *reaper.Reaper
	launcher func() (*launch.Launcher, error) // made by the first exec
	rcu      systemd.RCUWarmup

	execTimeout time.Duration
}

// execTimeout is what setting up an exec may take. A container decides how long parts of it do: its cgroup may be frozen,
// or a file system of its own may not answer. In a container that hardly gets a CPU it is done in seconds.
const execTimeout = 30 * time.Second

// New makes an Engine whose children reaper leaves alone.
func New(reaper *reaper.Reaper) *Runtime {
	return &Runtime{
		reaper:      reaper,
		launcher:    sync.OnceValues(func() (*launch.Launcher, error) { return launch.New(reaper) }),
		execTimeout: execTimeout,
	}
}

// Create implements process.RuntimeContainer.
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
		r.rcu.Start()
		if err := systemd.Prepare(ctx, c.Spec.Linux.CgroupsPath, config.Cgroups); err != nil {
			return nil, err
		}
	}
	if c.Checkpoint != "" {
		prepared, err := r.prepare(c, config)
		if err != nil {
			return nil, err // not prepared: a nil *container in an interface is not nil
		}
		return prepared, nil
	}
	init, err := libcontainerProcess(c.Spec.Process, s)
	if err != nil {
		return nil, err
	}
	init.Init, init.ExtraFiles = true, c.Files
	lc, err := libcontainer.Create(c.Root, c.ID, config)
	if err != nil {
		return nil, createError(sysctlError(err, c.Spec.Linux.Sysctl), c.Spec.Linux.CgroupsPath)
	}
	handle, err := r.spawn(ctx, lc, init, s)
	if err == nil {
		var created *container
		if created, err = newContainer(r, c, lc, config, handle); err == nil {
			return created, nil
		}
		_ = handle.Signal(unix.SIGKILL) // dead already is as good
		handle.Wait()
	}
	err = sysctlError(cgroupError(err, c.Spec.Linux), c.Spec.Linux.Sysctl)
	if undo := r.discard(lc, stateDir(c.Root, c.ID)); undo != nil {
		err = errors.Join(err, fmt.Errorf("undo: %w", undo))
	}
	return nil, err
}

// spawn starts p in lc and hands it its streams. When ctx ends before p is set
// up, it is killed, with everything in the container's cgroup if it is init,
// which makes libcontainer give up. When spawn fails p is dead and collected.
func (r *Runtime) spawn(ctx context.Context, lc *libcontainer.Container, p *libcontainer.Process, s *stdio.Streams) (*handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !p.Init && lc.Config().Cgroups.Systemd {
		// It puts the process into the scope where the kernel does not let it be
		// born there, because the container made cgroups of its own.
		if err := systemd.Await(ctx); err != nil {
			return nil, err
		}
	}
	defer r.reaper.Suspend()()
	doomed := r.isStage
	if p.Init {
		doomed = nil
		born, err := beBorn(lc, p)
		if err != nil {
			return nil, err
		}
		defer born()
	}
	group := lc.Config().Cgroups
	stop := interrupt(ctx, func() { killMembers(lc.ID(), group, doomed) })
	err := lc.Start(p)
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("interrupted: %w: %w", context.Cause(ctx), err)
		}
		return nil, startError(err, p.Args)
	}
	h, err := newHandle(r.reaper, p)
	if err != nil {
		return nil, err
	}
	if err = s.Started(ctx); err == nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", context.Cause(ctx)) // what was killed is no failure to libcontainer
	}
	if err != nil {
		_ = h.Signal(unix.SIGKILL) // dead already is as good
		h.Wait()
		return nil, err
	}
	return h, nil
}

// interrupt makes libcontainer give up on setting a process up once ctx ends: it
// calls kill again and again, until stop is called, because a process may join
// the container's cgroup only later. A hook that runs in the runtime's
// namespaces is not in the cgroup; its own timeout bounds it (OCI runtime
// specification, config.md, POSIX-platform Hooks).
func interrupt(ctx context.Context, kill func()) (stop func()) {
	const again = 5 * time.Millisecond
	over, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when stop is called, which joins it
		defer close(done)
		select {
		case <-ctx.Done():
		case <-over:
			return
		}
		for {
			kill()
			select {
			case <-time.After(again):
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-done }
}

// killMembers kills what is in a container's cgroup, or, where doomed is not nil,
// what of it is doomed. It asks the cgroup, not libcontainer, whose lock the call
// that is to be interrupted holds.
func killMembers(containerID string, group *cgroups.Cgroup, doomed func(pid int) bool) {
	m, err := manager.New(group)
	if err != nil {
		log.L.WithError(err).WithField("container", containerID).Warn("interrupt start")
		return
	}
	pids, _ := m.GetAllPids() // no cgroup yet: nothing to kill
	for _, pid := range pids {
		if doomed == nil || doomed(pid) {
			_ = unix.Kill(pid, unix.SIGKILL) // gone already is as good
		}
	}
}

// isStage reports whether a process is a stage of libcontainer that is to become an exec's program: a child of ours which
// nobody waits for yet, by the name that nsenter/nsexec.c gives it. A child that we adopted has another, unless it asks
// for it.
func (r *Runtime) isStage(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	name, rest, _ := strings.Cut(string(stat), ") ")
	var state string
	var ppid int
	_, err = fmt.Sscan(rest, &state, &ppid)
	return err == nil && strings.Contains(name, "(runc:[") && ppid == os.Getpid() && !r.reaper.Registered(pid)
}

func newContainer(r *Runtime, c process.Config, lc *libcontainer.Container, config *configs.Config, init *handle) (*container, error) {
	state, err := lc.State()
	if err != nil {
		return nil, err
	}
	m, err := newManager(config, state.CgroupPaths)
	if err != nil {
		return nil, err
	}
	group := cgroup.New(state.CgroupPaths)
	if config.RootlessCgroups && !group.Exists() {
		group = cgroup.New(nil) // on v2 libcontainer tells the path even of one that it was not allowed to make
	}
	if err := writeExtra(group, c.Spec.Linux.Resources); err != nil {
		return nil, fmt.Errorf("linux.resources: %w", err)
	}
	limitDepth(c.ID, group, c.Spec.Linux.Resources)
	// Init's waiter does not run yet, so the pid is init's.
	stage, err := executable(init.pid)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(init.pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &container{
		runtime: r, config: c, lc: lc, init: init, initFD: os.NewFile(uintptr(fd), "pidfd"), manager: m, cgroup: group,
		stateDir: stateDir(c.Root, c.ID), ownsPIDs: config.Namespaces.IsPrivate(configs.NEWPID), stage: stage,
		spawning: make(chan struct{}, 1), execs: newExecs(config, init.pid),
	}, nil
}

// newManager gives the manager a configuration of its own: it keeps there what
// was set last and whether the cgroup is frozen, while libcontainer reads its
// own when it starts an exec. paths may be nil.
func newManager(config *configs.Config, paths map[string]string) (cgroups.Manager, error) {
	own, asked := *config.Cgroups, *config.Cgroups.Resources
	own.Resources = &asked
	m, err := manager.NewWithPaths(&own, paths)
	if err == nil && own.Systemd {
		m = systemd.NewScope(m, &own)
	}
	return m, err
}
