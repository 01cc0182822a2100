// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/shim/pkg/ociruntime/launch"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

// execs is what is kept between the execs of a container.
type execs struct {
	filter    func() (*launch.Filter, error) // made by the first exec that needs it
	setGroups func() (bool, error)           // whether the user namespace lets setgroups(2); that never changes
}

func newExecs(config *configs.Config, initPID int) execs {
	return execs{
		filter: sync.OnceValues(func() (*launch.Filter, error) {
			return launch.Capture(func() error { _, err := seccomp.InitSeccomp(config.Seccomp); return err })
		}),
		setGroups: sync.OnceValues(func() (bool, error) {
			if !config.Namespaces.Contains(configs.NEWUSER) {
				return true, nil
			}
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/setgroups", initPID))
			return string(text) != "deny\n", err
		}),
	}
}

// Exec starts p with the launcher where that covers what p and the container
// ask for, and else with libcontainer. What p may do to process 1 is for the
// container's program.
func (c *container) Exec(ctx context.Context, p *specs.Process, s *stdio.Streams) (process.Handle, error) {
	c.awaitProgram()
	lp, err := libcontainerProcess(p, s)
	if err != nil {
		return nil, err
	}
	if !c.config.ExecCgroup {
		return handleOf(c.startExec(ctx, lp, s, nil))
	}
	n, err := c.newExecCgroup()
	if err != nil {
		return nil, err
	}
	return c.execIn(ctx, lp, s, n)
}

// handleOf makes a nil *handle a nil interface.
func handleOf(h *handle, err error) (process.Handle, error) {
	if err != nil {
		return nil, err
	}
	return h, nil
}

// startExec starts lp in the container's cgroup, or in n.
func (c *container) startExec(ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, n *execCgroup) (*handle, error) {
	late := fmt.Errorf("the process was not set up within %v: %w", c.runtime.execTimeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, c.runtime.execTimeout, late)
	defer cancel()
	h, err := c.launch(ctx, lp, s, n)
	if reason := (unsupported{}); errors.As(err, &reason) {
		// libcontainer gives the terminal a stderr beside it too. What it was to
		// lead to then comes to its end at once.
		log.G(ctx).WithField("container", c.config.ID).WithField("reason", reason.Error()).Debug("exec by libcontainer")
		if n != nil {
			lp.SubCgroupPaths = n.below
		}
		h, err = c.spawn(ctx, lp, s)
	}
	return h, err
}

// spawn starts lp with libcontainer, one at a time: what it kills when ctx ends
// is to be of this exec.
func (c *container) spawn(ctx context.Context, lp *libcontainer.Process, s *stdio.Streams) (*handle, error) {
	select {
	case c.spawning <- struct{}{}:
		defer func() { <-c.spawning }()
		return c.runtime.spawn(ctx, c.lc, lp, s)
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted while libcontainer starts another exec: %w", context.Cause(ctx))
	}
}

// splitStderr is the stderr that a process with a terminal has beside it; nil
// for none.
func splitStderr(s *stdio.Streams) *os.File {
	if s.ConsoleSocket() == nil {
		return nil
	}
	_, _, stderr := s.Child()
	return stderr
}

// unsupported is why the launcher cannot start a process.
type unsupported struct{ error }

// launch starts lp with the launcher. It is an unsupported error, and nothing was
// started, where the launcher cannot do it.
func (c *container) launch(ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, n *execCgroup) (*handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.init == nil {
		return nil, unsupported{errors.New("the container was restored")}
	}
	launcher, err := c.runtime.launcher() // first: its kernel is new enough to capture a filter
	if err != nil {
		return nil, unsupported{err}
	}
	command, err := c.command(lp)
	if err != nil {
		return nil, err
	}
	if command.Terminal != nil {
		command.Stdio[2] = splitStderr(s)
	}
	c.place(command, n)
	p, err := launcher.Start(ctx, command)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("interrupted: %w", err)
	case errors.Is(err, launch.ErrNotJoined): // libcontainer looks for init's cgroup then
		return nil, unsupported{err}
	case errors.Is(err, launch.ErrNotStarted):
		return nil, unsupported{err}
	case err != nil:
		return nil, startError(fmt.Errorf("unable to start container process: %w", err), lp.Args)
	}
	h := ownHandle(c.runtime.reaper, p, p.Pid)
	return h, h.started(ctx, s)
}
