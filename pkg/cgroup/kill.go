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

// batch bounds the descriptors that are open at a time while processes are signalled.
const batch = 128

// Kill sends sig to every process of the cgroup and of the cgroups nested in it.
//
// For SIGKILL it repeats until none is left or ctx ends; the error then says which are, and is ctx's cause. It uses
// cgroup.kill where there is one (Linux 5.14), which no fork can outrun, before it looks at anything: a container may make more
// cgroups as fast as they are looked at. Else it freezes the cgroup, signals each process,
// and thaws it. A cgroup that is frozen is thawed on v1, where its processes could not die; on v2 they can.
//
// Any other signal is sent once, with the cgroup frozen meanwhile, so that no fork is missed. A cgroup that was frozen
// stays so, and the signal arrives when it is thawed: thawing is for those to say who paused it.
//
// Who joins a cgroup in which Kill used cgroup.kill with CLONE_INTO_CGROUP later has to see whether the process lives:
// Linux 6.18 kills it at birth. Joining through cgroup.procs is safe.
//
// A cgroup that is gone is success. The root of a hierarchy, a cgroup that holds the calling process, and one without any
// known path are errdefs.ErrFailedPrecondition.
func (c *Cgroup) Kill(ctx context.Context, sig syscall.Signal) error {
	if err := c.refuseKill(); err != nil {
		return err
	}
	if sig == syscall.SIGKILL && !c.mayHoldThisProcess() {
		c.killAtOnce()
	}
	for round, wait := 0, firstPoll; ; round, wait = round+1, min(2*wait, lastPoll) {
		if found, err := c.killable(); !found {
			return err
		}
		if sig != syscall.SIGKILL {
			return c.signal(ctx, sig)
		}
		if err := c.killRound(ctx, round); err != nil {
			return err
		}
		if !pause(ctx, wait) {
			return c.left(context.Cause(ctx))
		}
	}
}

// Signal is Kill with a signal other than SIGKILL while somebody else may be freezing the cgroup, whose freeze Kill would end:
// it does not freeze, and may miss a process that is being forked.
func (c *Cgroup) Signal(sig syscall.Signal) error {
	if err := c.refuseKill(); err != nil {
		return err
	}
	if found, err := c.killable(); !found {
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

// killable reports whether there is a process in the cgroup. One that holds the calling process is an error.
func (c *Cgroup) killable() (bool, error) {
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

// left returns nil when the cgroup is empty, and else what is in it and why Kill gave up.
func (c *Cgroup) left(why error) error {
	pids, err := c.Procs()
	if errdefs.IsNotFound(err) || err == nil && len(pids) == 0 {
		return nil
	}
	return errors.Join(fmt.Errorf("kill cgroup %s: %s left: %w", c, describe(pids), why), err)
}

// isRoot reports whether dir is the root of a hierarchy, in which all processes of the machine may be. Only the root has
// release_agent on v1, and only the root has no cgroup.events on v2.
func isRoot(dir string) bool {
	if exists(filepath.Join(dir, "release_agent")) {
		return true
	}
	// In this order, since the cgroup may be removed between the two looks.
	return !exists(filepath.Join(dir, "cgroup.events")) && exists(filepath.Join(dir, "cgroup.subtree_control"))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// mayHoldThisProcess reports whether the calling process may be in the cgroup, or one nested in it. It asks no hierarchy: if the
// cgroup's name is nowhere in the paths of this process, it is not. Those are seen from the root of a cgroup namespace, and
// the cgroup's from a mount, but both have what is below the two.
func (c *Cgroup) mayHoldThisProcess() bool {
	own, err := os.ReadFile("/proc/self/cgroup")
	return err != nil || slices.ContainsFunc(c.dirs, func(dir string) bool {
		return strings.Contains(string(own), filepath.Base(dir))
	})
}

// killAtOnce sends SIGKILL to all by cgroup.kill, and reports whether it could.
func (c *Cgroup) killAtOnce() bool {
	dir := c.paths[""]
	if dir == "" {
		return false
	}
	if err := write(filepath.Join(dir, "cgroup.kill"), "1"); err != nil {
		// The kernel has no such file, or the cgroup is threaded, which makes it refuse, or gone.
		log.L.WithError(err).WithField("cgroup", c.String()).Debug("no cgroup.kill")
		return false
	}
	return true
}

// killRound sends SIGKILL once to all, in the best way the machine has.
func (c *Cgroup) killRound(ctx context.Context, round int) error {
	// On hybrid the v2 hierarchy holds the same processes, unless some were moved in one hierarchy alone: these are for
	// the second round.
	if !c.unified && round > 0 || !c.killAtOnce() {
		return c.signal(ctx, syscall.SIGKILL)
	}
	if c.unified {
		return nil
	}
	return c.freezer().thawTree()
}

// signal sends sig to each process, with the cgroup frozen where that is possible.
func (c *Cgroup) signal(ctx context.Context, sig syscall.Signal) error {
	f := c.freezer()
	paused := f.asked()
	if !paused {
		if err := f.freeze(ctx); err != nil {
			log.L.WithError(err).WithField("cgroup", c.String()).Debug("signalling processes that are not frozen")
		}
	}
	err := c.signalEach(sig)
	switch {
	case sig == syscall.SIGKILL:
		err = errors.Join(err, f.thawTree())
	case !paused:
		err = errors.Join(err, f.thaw())
	}
	return err
}

// signalEach sends sig to each process that is in the cgroup now. Between reading a process id and using it the process
// may end and another one, of somebody else, get its id. So each is pinned first (os.FindProcess opens a pidfd), and only
// those are signalled that the cgroup lists still after that.
func (c *Cgroup) signalEach(sig syscall.Signal) error {
	pids, err := c.Procs()
	var errs []error
	for pids := range slices.Chunk(pids, batch) {
		errs = append(errs, c.signalBatch(pids, sig))
	}
	if errdefs.IsNotFound(err) {
		err = nil
	}
	return errors.Join(err, errors.Join(errs...))
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
	still, err := c.Procs()
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, p := range procs {
		if _, ok := slices.BinarySearch(still, p.Pid); !ok {
			continue
		}
		if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("signal process %d of cgroup %s: %w", p.Pid, c, err))
		}
	}
	return errors.Join(errs...)
}
