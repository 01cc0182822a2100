// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/cgroup"
	"sandbox.internal/shim/pkg/process"
)

// limitedExec is the first process of an exec with limits. It implements [process.Handle] and [process.ExecCgroup].
type limitedExec struct {
	process.Handle
	groups  *execGroups
	group   *execGroup
	final   atomic.Pointer[process.Usage] // set by Wait
	account cgroup.Account                // set by Wait
}

// killTimeout is how long Signal waits until all processes have exited. Wait continues the kill.
const killTimeout = 50 * time.Millisecond

// Signal sends SIGKILL to the whole cgroup, and other signals to the first process.
func (e *limitedExec) Signal(sig syscall.Signal) error {
	if err := e.Handle.Signal(sig); err != nil || sig != unix.SIGKILL {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if err := e.group.Kill(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("kill the processes of the exec: %w", err)
	}
	return nil
}

// Wait waits for the first process, and then kills the others that are left and waits until they have exited.
func (e *limitedExec) Wait() process.Exit {
	exit := e.Handle.Wait()
	if !e.group.IsEmpty() {
		if err := e.group.killAll(); err != nil {
			e.log().WithError(err).Error("kill the processes of an exec")
		}
	}
	// What the cgroup does not tell is the first process's: the kernel may not count memory, and systemd may have removed
	// the cgroup with the scope that it is in.
	all, err := e.group.Account()
	e.warn(err)
	if errdefs.IsNotFound(err) {
		all = exit.Used
		all.Memory = 0
	}
	total := all.Memory > 0
	if !total {
		all.Memory = exit.Used.Memory
	}
	e.account = all
	e.final.Store(&process.Usage{CPU: all.CPU, Memory: all.Memory, CgroupTotal: total})
	return exit
}

func (e *limitedExec) Cgroup() *cgroup.Cgroup { return e.group.Cgroup }

func (e *limitedExec) Usage() process.Usage {
	if final := e.final.Load(); final != nil {
		return *final
	}
	u, err := e.group.Usage()
	e.warn(err)
	return process.Usage{CPU: u.CPU, Memory: u.Memory, CgroupTotal: u.Memory > 0}
}

func (e *limitedExec) warn(err error) {
	if err != nil && !errdefs.IsNotFound(err) {
		e.log().WithError(err).Warn("usage of an exec")
	}
}

func (e *limitedExec) Account() cgroup.Account { return e.account }
func (e *limitedExec) Release()                { e.groups.remove(e.group) }
func (e *limitedExec) log() *log.Entry         { return log.L.WithField("cgroup", e.group.String()) }
