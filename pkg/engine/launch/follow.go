// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"slices"

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
	next, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	if err := exited(next, unix.WNOHANG); err != nil {
		return fmt.Errorf("launcher: step %d told of process %d: must be a child of ours: %w: %w", step, pid, err, errdefs.ErrInternal)
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

	if err := exited(ends, 0); err != nil {
		return fmt.Errorf("wait for process %d: %w", ends.Pid, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends = nil
	if _, err := ends.Wait(); err != nil { // at once, since it ended
		return fmt.Errorf("wait for process %d: %w", ends.Pid, err)
	}
	return nil
}

// exited waits for the end of p and leaves it to be waited for; with WNOHANG it only tells whether p can be.
func exited(p *os.Process, options int) (err error) {
	noHandle := p.WithHandle(func(pidfd uintptr) {
		for {
			err = unix.Waitid(unix.P_PIDFD, int(pidfd), nil, unix.WEXITED|unix.WNOWAIT|options, nil)
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
