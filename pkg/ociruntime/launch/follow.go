// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// follow waits for the process that ends at the fork of this step, and goes on with the one of that pid. What happens
// after a later fork may be told before. A process of the container that got hold of the socket could tell anything, so
// that is refused which the program would not tell.
func (a *attempt) follow(r *request, pid int, step uint32) error {
	if int(step) >= len(r.steps) || !r.steps[step].fork() || slices.Contains(a.told, step) {
		return fmt.Errorf("launcher: step %d told of process %d: must be a fork that was not told of: %w", step, pid, errdefs.ErrInternal)
	}
	next, err := a.claim(pid)
	if err != nil {
		return fmt.Errorf("launcher: step %d told of process %d: %w", step, pid, err)
	}
	a.told = append(a.told, step)

	ends := next
	a.mu.Lock()
	if step >= a.step {
		ends, a.current, a.step = a.current, next, step
	}
	a.ends = ends
	if a.over {
		a.kill(next) // interrupt hit those before
	}
	a.mu.Unlock()

	if err := awaitDeath(ends, time.Time{}); err != nil {
		return fmt.Errorf("wait for process %d: %w", ends.Pid, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends = nil
	return a.collect(ends)
}

// claim makes a process one that only we wait for.
func (a *attempt) claim(pid int) (*os.Process, error) {
	if !a.reaper.Register(pid) {
		return nil, fmt.Errorf("must be a child without an owner: %w", errdefs.ErrInternal)
	}
	p, err := os.FindProcess(pid)
	if err == nil {
		err = isChild(p)
	}
	if err != nil {
		a.reaper.Unregister(pid)
		return nil, fmt.Errorf("must be a child of ours: %w: %w", err, errDied) // the reaper has what died already
	}
	return p, nil
}

// isChild is an error if p cannot be waited for.
func isChild(p *os.Process) (err error) {
	noHandle := p.WithHandle(func(pidfd uintptr) {
		for {
			err = unix.Waitid(unix.P_PIDFD, int(pidfd), nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
			if err != unix.EINTR {
				return
			}
		}
	})
	if noHandle != nil {
		return noHandle
	}
	return os.NewSyscallError("waitid", err)
}

// awaitDeath returns when p, which was not waited for, is dead, or with os.ErrDeadlineExceeded.
func awaitDeath(p *os.Process, deadline time.Time) error {
	death, err := WatchDeath(p.Pid)
	if err != nil {
		return err
	}
	return death.Await(deadline)
}

// collect waits for p, which is dead.
func (a *attempt) collect(p *os.Process) error {
	defer a.reaper.Unregister(p.Pid)
	if _, err := p.Wait(); err != nil {
		return fmt.Errorf("wait for process %d: %w", p.Pid, err)
	}
	return nil
}
