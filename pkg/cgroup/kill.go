// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// batchSize bounds the descriptors that are open at a time while processes are signalled.
const batchSize = 128

// Kill sends sig to every process of the cgroup and of the cgroups nested in it.
//
// It repeats SIGKILL until no process is left or ctx ends; the error then names those left and wraps the cause of ctx.
// Where there is cgroup.kill (Linux 5.14), which no fork can outrun, Kill writes it before it lists anything: a
// container may make cgroups as fast as they are listed. Elsewhere it freezes the cgroup, signals each process, and
// thaws it. It leaves the cgroup thawed, on v1 because frozen processes cannot die there.
//
// It sends any other signal once, with the cgroup frozen meanwhile so that it misses no fork. A cgroup that was frozen
// before stays frozen, and the signal arrives when whoever paused it thaws it.
//
// Linux 6.18 kills at birth what is later cloned with CLONE_INTO_CGROUP into a cgroup in which cgroup.kill was written,
// so the caller has to check that it lives. Joining through cgroup.procs is safe.
//
// A cgroup that is gone is success. The root of a hierarchy, a cgroup that contains the calling process, and one
// without a path are errdefs.ErrFailedPrecondition.
func (c *Cgroup) Kill(ctx context.Context, sig syscall.Signal) error {
	if err := c.refuseKill(); err != nil {
		return err
	}
	if sig == syscall.SIGKILL && !c.mayContainSelf() {
		c.writeKill()
	}
	for round, wait := 0, firstPoll; ; round, wait = round+1, min(2*wait, lastPoll) {
		if found, err := c.hasProcesses(); !found {
			return err
		}
		if sig != syscall.SIGKILL {
			return c.signalFrozen(ctx, sig)
		}
		if err := c.killRound(ctx, round); err != nil {
			return err
		}
		if !sleep(ctx, wait) {
			return c.leftError(context.Cause(ctx))
		}
	}
}

// Signal sends a signal other than SIGKILL, like Kill but without a freeze, which would end a freeze of somebody
// else's. It may miss a process that is being forked.
func (c *Cgroup) Signal(sig syscall.Signal) error {
	if err := c.refuseKill(); err != nil {
		return err
	}
	if found, err := c.hasProcesses(); !found {
		return err
	}
	return c.signalEach(sig)
}

// refuseKill returns an error for a cgroup in which nothing may ever be signalled.
func (c *Cgroup) refuseKill() error {
	if len(c.dirs) == 0 {
		return fmt.Errorf("kill cgroup: no path known: %w", errdefs.ErrFailedPrecondition)
	}
	if i := slices.IndexFunc(c.dirs, isRoot); i >= 0 {
		return fmt.Errorf("kill cgroup %s: it is the root of a hierarchy: %w", c.dirs[i], errdefs.ErrFailedPrecondition)
	}
	return nil
}

// hasProcesses reports whether there is a process in the cgroup. The calling process being there is an error.
func (c *Cgroup) hasProcesses() (bool, error) {
	pids, err := c.Procs()
	switch {
	case errdefs.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	case slices.Contains(pids, os.Getpid()):
		return false, fmt.Errorf("kill cgroup %s: it holds this process: %w", c, errdefs.ErrFailedPrecondition)
	}
	return len(pids) > 0, nil
}

// leftError returns nil if the cgroup is empty, or else what is left in it and why Kill gave up.
func (c *Cgroup) leftError(why error) error {
	pids, err := c.Procs()
	if errdefs.IsNotFound(err) || err == nil && len(pids) == 0 {
		return nil
	}
	return errors.Join(fmt.Errorf("kill cgroup %s: %s left: %w", c, describe(pids), why), err)
}

// isRoot reports whether dir is the root of a hierarchy, in which all processes of the machine may be. Only the root
// has release_agent on v1, and only the root has no cgroup.events on v2.
func isRoot(dir string) bool {
	if exists(filepath.Join(dir, "release_agent")) {
		return true
	}
	// In this order, since the cgroup may be removed in between.
	return !exists(filepath.Join(dir, "cgroup.events")) && exists(filepath.Join(dir, "cgroup.subtree_control"))
}

// mayContainSelf reports whether the calling process may be in the cgroup, or one nested in it. It is not if the
// cgroup's name is nowhere in the paths of this process. Those are relative to a cgroup namespace, and the cgroup's to
// a mount, but both include the name.
func (c *Cgroup) mayContainSelf() bool {
	own, err := os.ReadFile("/proc/self/cgroup")
	return err != nil || slices.ContainsFunc(c.dirs, func(dir string) bool {
		return strings.Contains(string(own), filepath.Base(dir))
	})
}

// writeKill sends SIGKILL to all processes by cgroup.kill, and reports whether it could.
func (c *Cgroup) writeKill() bool {
	dir := c.paths[""]
	if dir == "" {
		return false
	}
	if err := Write(filepath.Join(dir, "cgroup.kill"), "1"); err != nil {
		// The kernel has no such file, or the cgroup is gone or threaded, in which case the kernel refuses.
		log.L.WithError(err).WithField("cgroup", c.String()).Debug("no cgroup.kill")
		return false
	}
	return true
}

// killRound sends SIGKILL once to all processes, in the best way the machine has.
func (c *Cgroup) killRound(ctx context.Context, round int) error {
	// On hybrid the v2 hierarchy has the same processes, unless somebody moved some in one hierarchy alone. The second
	// round is for these.
	if !c.unified && round > 0 || !c.writeKill() {
		return c.signalFrozen(ctx, syscall.SIGKILL)
	}
	if c.unified {
		return nil
	}
	return c.freezer().thawTree()
}

// signalFrozen sends sig to each process, with the cgroup frozen where that is possible.
func (c *Cgroup) signalFrozen(ctx context.Context, sig syscall.Signal) (err error) {
	f := c.freezer()
	if !f.requested() {
		thaw, freezeErr := f.freeze(ctx)
		if freezeErr != nil {
			log.L.WithError(freezeErr).WithField("cgroup", c.String()).Debug("signalling processes that are not frozen")
		}
		defer func() { err = errors.Join(err, thaw()) }()
	}
	err = c.signalEach(sig)
	if sig == syscall.SIGKILL {
		err = errors.Join(err, f.thawTree())
	}
	return err
}

// signalEach sends sig to each process that is in the cgroup now. After a process id was read, the process may end and
// somebody else's get the id. So each process is pinned first (os.FindProcess opens a pidfd), and only those are
// signalled that the cgroup still lists after that.
func (c *Cgroup) signalEach(sig syscall.Signal) error {
	pids, err := c.Procs()
	if errdefs.IsNotFound(err) {
		err = nil
	}
	errs := []error{err}
	for batch := range slices.Chunk(pids, batchSize) {
		errs = append(errs, c.signalBatch(batch, sig))
	}
	return errors.Join(errs...)
}

func (c *Cgroup) signalBatch(pids []int, sig syscall.Signal) error {
	procs := make([]*os.Process, 0, len(pids))
	for _, pid := range pids {
		p, err := os.FindProcess(pid)
		if err != nil {
			return fmt.Errorf("signal process %d of cgroup %s: %w", pid, c, err)
		}
		defer p.Release() //nolint:errcheck // it closes the pidfd and cannot fail
		procs = append(procs, p)
	}
	listed, err := c.Procs()
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, p := range procs {
		if _, ok := slices.BinarySearch(listed, p.Pid); !ok {
			continue
		}
		if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("signal process %d of cgroup %s: %w", p.Pid, c, err))
		}
	}
	return errors.Join(errs...)
}
