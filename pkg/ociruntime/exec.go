// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/limit"
	"sandbox.internal/shim/pkg/ociruntime/translate"
	"sandbox.internal/shim/pkg/process"
	"sandbox.internal/shim/pkg/stdio"
)

func (c *container) Exec(
	ctx context.Context, p *specs.Process, l *limit.Limits, s *stdio.Streams,
) (process.Handle, process.ExecCgroup, error) {
	if err := c.use(); err != nil {
		return nil, nil, err
	}
	if c.former && c.init.child == (gone{}) {
		return nil, nil, fmt.Errorf("join the container: %w", unix.ESRCH)
	}
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
	group, err := c.newExecGroup(l)
	if err != nil {
		return nil, nil, err
	}
	h, err := c.execIn(ctx, lp, s, group)
	if err != nil {
		return nil, nil, err
	}
	return h, h, nil
}

// execIn starts lp in group. If it fails, nothing is left of either.
func (c *container) execIn(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, group *execGroup,
) (*limitedExec, error) {
	h, err := c.startExec(ctx, lp, s, group)
	if err != nil {
		return nil, errors.Join(err, group.discard())
	}
	return &limitedExec{Handle: h, group: group}, nil
}

// execProcess is an exec without a cgroup as callers see it.
type execProcess struct {
	*handle
	container *container
}

// Signal sends SIGKILL to the session of the exec, and other signals to its process: a probe that is killed cannot end
// what it has started. Daemons have sessions of their own.
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

// killSession kills the processes of a session other than its leader, and most of those that they fork meanwhile.
func (c *container) killSession(leader int) error {
	const rounds = 10
	for range rounds {
		found := false
		err := c.cgroup.Signal(unix.SIGKILL, func(pid int) bool {
			session, err := unix.Getsid(pid)
			isOf := err == nil && session == leader && pid != leader
			found = found || isOf
			return isOf
		})
		if err != nil || !found {
			return err
		}
	}
	return nil
}

func (c *container) startExec(
	ctx context.Context, lp *libcontainer.Process, s *stdio.Streams, group *execGroup,
) (h *handle, err error) {
	late := fmt.Errorf("the process was not set up within %v: %w", c.runtime.execTimeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, c.runtime.execTimeout, late)
	defer cancel()
	err = c.start(ctx, lp, func(by starter) (err error) {
		h, err = by.startExec(ctx, c, lp, s, group)
		return err
	})
	return h, err
}
