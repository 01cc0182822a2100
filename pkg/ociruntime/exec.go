// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/containerd/log"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/ociruntime/execgroup"
	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/ociruntime/ocierrors"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// Exec starts p with the launcher if that supports what p and the container need, else with libcontainer. It first
// waits until init runs its program, since p may signal process 1.
func (c *container) Exec(
	ctx context.Context, p *specs.Process, l *limit.Limits, s *stdio.Streams,
) (process.Handle, process.ExecCgroup, error) {
	c.AwaitProgram()
	lp, err := translate.Process(p, s)
	if err != nil {
		return nil, nil, err
	}
	if l == nil {
		h, err := c.startExec(ctx, lp, s, nil)
		if err != nil {
			return nil, nil, err // a nil *handle in an interface would not be nil
		}
		return execProcess{h, c}, nil, nil
	}
	group, err := c.execGroups.Make(l)
	if err != nil {
		return nil, nil, err
	}
	h, err := c.execIn(ctx, lp, s, group)
	if err != nil {
		return nil, nil, err
	}
	return h, h, nil
}

// execProcess is an exec without a cgroup as callers see it.
type execProcess struct {
	*handle
	container *container
}

// Signal sends SIGKILL to the session of the exec, and other signals to its process: what is killed because it takes
// too long, as a probe, has no chance to end what it has started. Daemons have sessions of their own.
func (e execProcess) Signal(sig syscall.Signal) error {
	if sig != unix.SIGKILL {
		return e.handle.Signal(sig)
	}
	e.reaping.Lock() // until the end the number of the session is that of no other
	defer e.reaping.Unlock()
	if err := e.handle.Signal(sig); err != nil {
		return err
	}
	if err := e.container.killSession(e.pid); err != nil {
		log.L.WithError(err).WithField("container", e.container.config.ID).Warn("kill the session of an exec")
	}
	return nil
}

// killSession kills the processes of a session, and those that they fork meanwhile, but does not race without end with
// one that forks.
func (c *container) killSession(leader int) error {
	const rounds = 10
	killed := map[int]bool{leader: true}
	for range rounds {
		before := len(killed)
		err := c.cgroup.SignalThose(unix.SIGKILL, func(pid int) bool {
			session, err := unix.Getsid(pid)
			if err != nil || session != leader || killed[pid] {
				return false
			}
			killed[pid] = true
			return true
		})
		if err != nil || len(killed) == before {
			return err
		}
	}
	return nil
}

// startExec starts lp in group or, if that is nil, in the container's cgroup.
func (c *container) startExec(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, group *execgroup.Group,
) (*handle, error) {
	late := fmt.Errorf("the process was not set up within %v: %w", c.runtime.execTimeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, c.runtime.execTimeout, late)
	defer cancel()
	h, err := c.execByLauncher(ctx, lp, s, group)
	if reason := (unsupported{}); errors.As(err, &reason) {
		if c.config.TaskDir != "" && !filepath.IsAbs(lp.Args[0]) { // it is not looked for anywhere else
			return nil, launcherError("host-rootfs.task-dir", reason.error, lp.Args)
		}
		// With a terminal libcontainer puts stderr there too, so a separate stderr reads EOF immediately.
		log.G(ctx).WithField("container", c.config.ID).WithField("reason", reason.Error()).Debug("exec by libcontainer")
		c.fellBack(reason.Error())
		if group != nil {
			lp.SubCgroupPaths = group.SubPaths
		}
		if h, err = c.execByLibcontainer(ctx, lp, s); err == nil && group != nil {
			if err = group.LimitProcesses(); err != nil { // not before: libcontainer has threads
				h.kill()
			}
		}
	}
	return h, err
}

// execByLibcontainer starts lp with libcontainer, one exec at a time: when ctx ends, the stages that it kills must be
// those of this exec.
func (c *container) execByLibcontainer(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams,
) (*handle, error) {
	select {
	case c.libcontainerExec <- struct{}{}:
		defer func() { <-c.libcontainerExec }()
		lc, err := c.libcontainer()
		if err != nil {
			return nil, err
		}
		// libcontainer lets Go make the process in the cgroup, on v2. Until that has run a program, Go's runtime waits
		// with all that it could run, and no deadline counts.
		if err := c.cgroup.AwaitThaw(ctx); err != nil {
			return nil, err
		}
		return c.runtime.startByLibcontainer(ctx, lc, lp, s)
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted while libcontainer starts another exec: %w", context.Cause(ctx))
	}
}

// unsupported is the reason why the launcher cannot start a process. Nothing was started then.
type unsupported struct{ error }

// Error is short: the reason is kept as long as the container, and may have a text of the container's configuration.
func (u unsupported) Error() string { return fmt.Sprintf("%.1000s", u.error.Error()) }

// execByLauncher starts lp with the launcher, or returns an unsupported error.
func (c *container) execByLauncher(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, group *execgroup.Group,
) (*handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.init == nil {
		return nil, unsupported{errors.New("the container was restored")}
	}
	launcher, err := c.runtime.launcher() // fails on kernels that are too old to capture a filter, as command does
	if err != nil {
		return nil, unsupported{err}
	}
	command, err := c.command(lp, s)
	if err != nil {
		return nil, err
	}
	c.joinCgroups(command, group)
	if group != nil {
		command.Ready = group.LimitProcesses
	}
	p, err := command.Start(ctx, launcher, c.runtime.reaper)
	if errors.Is(err, launch.ErrNotJoined) && group == nil && c.joinInit(command) {
		p, err = command.Start(ctx, launcher, c.runtime.reaper)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", err)
	case errors.Is(err, launch.ErrNotJoined) && !cgroups.IsCgroup2UnifiedMode():
		return nil, unsupported{err} // on hybrid libcontainer does without the v2 hierarchy
	case err != nil:
		if ended, _ := cgroup.HasEnded(int(c.initFD.Fd())); ended { // so may its cgroup be gone
			err = fmt.Errorf("%w: %w", err, unix.ESRCH)
		}
		return nil, ocierrors.Start(err, lp.Args)
	}
	h := newHandle(c.runtime.reaper, p, p.Pid)
	return h, h.started(ctx, s)
}
