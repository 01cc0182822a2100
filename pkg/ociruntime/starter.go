// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"

	"sandbox.internal/shim/pkg/inspect"
	"sandbox.internal/shim/pkg/launcher"
	"sandbox.internal/shim/pkg/stdio"
)

// starter starts processes of containers: the launcher or libcontainer. If a method fails, or ctx ends first, nothing
// is left of the process and, if the error is unsupported, of the cgroup: the other starter may succeed.
type starter interface {
	// startInit starts p as the init of c, and passes it its streams. Init waits at the gate until Start.
	startInit(ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams) (*handle, gate, error)
	// startExec starts p in group or, if that is nil, in the cgroup of c. It returns when the program of p has begun.
	startExec(
		ctx context.Context, c *container, p *libcontainer.Process, s *stdio.Streams, group *execGroup,
	) (*handle, error)
}

// gate is where an init waits until it is started.
type gate interface {
	open() error // lets init run its program; fails if init has exited
	close()      // frees what the gate holds; may be called again
}

// unsupported is the reason why the launcher cannot start a process.
type unsupported struct{ error }

// Error is short: the reason is kept as long as the container, and may have a text of the container's configuration.
func (u unsupported) Error() string { return fmt.Sprintf("%.1000s", u.error.Error()) }

// start starts p by the launcher or, if that does not support p, by libcontainer. Nothing else chooses: the error
// unsupported says why the launcher cannot.
func (c *container) start(ctx context.Context, p *libcontainer.Process, by func(starter) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := by(c.runtime.launcher)
	reason, ok := errors.AsType[unsupported](err)
	if !ok {
		return err
	}
	if p.Init && c.config.Init { // libcontainer has no init
		if errors.Is(reason.error, launcher.ErrNotStarted) {
			return startError(reason.error, p.Args)
		}
		return fmt.Errorf("init: not possible with this process: %w: %w", reason.error, errdefs.ErrFailedPrecondition)
	}
	c.byLibcontainer(ctx, p, reason.Error())
	return by(libcontainerStarter{c.runtime.reaper})
}

// byLibcontainer notes that libcontainer starts p.
func (c *container) byLibcontainer(ctx context.Context, p *libcontainer.Process, reason string) {
	logger := log.G(ctx).WithField("container", c.config.ID).WithField("reason", reason)
	c.launchMu.Lock()
	defer c.launchMu.Unlock()
	if p.Init {
		logger.Info("init by libcontainer")
		c.launch.Init, c.launch.InitReason = inspect.ByLibcontainer, reason
		return
	}
	logger.Debug("exec by libcontainer")
	c.launch.ExecsByLibcontainer++
	c.launch.ExecReason = reason
}

func (c *container) Launch() inspect.Launch {
	c.launchMu.Lock()
	defer c.launchMu.Unlock()
	return c.launch
}
