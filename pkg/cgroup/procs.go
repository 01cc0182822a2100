// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// Procs returns the ids of all processes in the cgroup and the cgroups nested in it, each once, in rising order. On v1
// it is the union over all hierarchies, since a process on its way in is not in each of them yet. Processes outside of
// the caller's pid namespace have no id and are left out. If no directory is left, the error is errdefs.ErrNotFound.
func (c *Cgroup) Procs() ([]int, error) {
	var pids []int
	found := false
	for _, dir := range c.dirs {
		more, err := procsBelow(dir)
		pids = append(pids, more...)
		switch {
		case err == nil:
			found = true
		case !IsGone(err):
			return nil, fmt.Errorf("list processes of cgroup %s: %w", c, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", c, errdefs.ErrNotFound)
	}
	slices.Sort(pids) // the kernel promises neither an order nor that it lists a process once
	return slices.Compact(pids), nil
}

// procsBelow lists the processes in the cgroup dir and those nested in it, in any order.
func procsBelow(dir string) (pids []int, err error) {
	err = walk(dir, func(n node) (err error) {
		pids, err = appendProcs(pids, n)
		if errors.Is(err, unix.EOPNOTSUPP) { // threaded: the domain above lists the processes (cgroup-v2.rst, "Threads")
			return nil
		}
		return err
	}, nil)
	return pids, err
}

// RefuseProcesses returns errdefs.ErrFailedPrecondition, with the directory and the processes, if a process is in the
// cgroup or in one nested in it, in whichever hierarchy. In one that does not exist it costs one system call.
func (c *Cgroup) RefuseProcesses() error {
	for _, dir := range c.dirs {
		pids, err := procsBelow(dir)
		if err != nil && !IsGone(err) {
			return fmt.Errorf("list processes of cgroup %s: %w", dir, err)
		}
		if len(pids) > 0 {
			return fmt.Errorf("cgroup %s is not empty: %s: %w", dir, describe(pids), errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// IsEmpty reports whether the cgroup and its nested cgroups are known to have no process.
func (c *Cgroup) IsEmpty() bool {
	if c.unified {
		n, err := readNumber(c.File("cgroup.events"), "populated")
		return err == nil && n == 0 || IsGone(err)
	}
	if n, err := readNumber(c.File("pids.current"), ""); err == nil && n == 0 { // which is faster to read
		return true
	}
	pids, err := c.Procs()
	return len(pids) == 0 && (err == nil || errdefs.IsNotFound(err))
}

func appendProcs(pids []int, n node) ([]int, error) {
	const file = "cgroup.procs"
	b, err := n.read(file)
	if err != nil {
		return pids, err
	}
	if pids, err = parseProcs(pids, b); err != nil {
		return pids, fmt.Errorf("parse %s: %w", filepath.Join(n.Name(), file), err)
	}
	return pids, nil
}

// parseProcs adds the processes that the text of cgroup.procs lists.
func parseProcs(pids []int, text []byte) ([]int, error) {
	for line := range bytes.Lines(text) {
		pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
		if err != nil {
			return pids, err
		}
		if pid > 0 { // 0 is a process outside of our pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// describe names processes for a message: their number, and program and state of the first few (proc_pid_stat(5)). No
// signal ends one in state D.
func describe(pids []int) string {
	const most = 3
	var names []string
	for _, pid := range pids[:min(len(pids), most)] {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // there is none of a process that is gone
		names = append(names, fmt.Sprintf("%d (%s)", pid, programAndState(stat)))
	}
	if len(pids) > most {
		names = append(names, "…")
	}
	return fmt.Sprintf("%d processes [%s]", len(pids), strings.Join(names, ", "))
}

// programAndState reads /proc/PID/stat. A process may have any bytes in its name.
func programAndState(stat []byte) string {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open || len(stat) < end+3 {
		return "gone"
	}
	return fmt.Sprintf("%s, state %c", stat[open+1:end], stat[end+2])
}

// Contains returns nil if a process is in the cgroup or one nested in it. pidfd is the process's, or -1, which stands
// for the process that has the id now. A dead process counts in its last cgroup where the kernel keeps that (Linux 6.17
// with cgroup v2 or hybrid); else the error is errdefs.ErrNotFound. For a process elsewhere it is
// errdefs.ErrPermissionDenied.
func (c *Cgroup) Contains(pid, pidfd int) error {
	ended := fmt.Errorf("process %d: ended before its cgroup was known: %w", pid, errdefs.ErrNotFound)
	if pidfd < 0 {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return ended // the last two: the id is that of a thread now
		case err != nil:
			return fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		pidfd = fd
	}
	if id, ok := lastCgroup(pidfd); ok && c.containsID(id) {
		return nil
	}
	pids, err := c.Procs()
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	// Checked after the list was read, so that the id still was that of the process.
	switch gone, err := HasEnded(pidfd); {
	case err != nil:
		return fmt.Errorf("process %d: %w", pid, err)
	case gone:
		return ended
	}
	if !slices.Contains(pids, pid) {
		return fmt.Errorf("process %d: not in cgroup %s: %w", pid, c, errdefs.ErrPermissionDenied)
	}
	return nil
}

// lastCgroup returns the id of the v2 cgroup in which a process is or was (PIDFD_GET_INFO, include/uapi/linux/pidfd.h).
func lastCgroup(pidfd int) (id uint64, ok bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_CGROUPID | unix.PIDFD_INFO_EXIT}
	err := unix.IoctlPidfdInfo(pidfd, &info)
	return info.Cgroupid, err == nil && info.Mask&unix.PIDFD_INFO_CGROUPID != 0
}

// containsID reports whether id is that of the cgroup in the v2 hierarchy, or of one nested in it. The id of a cgroup
// is the inode number of its directory.
func (c *Cgroup) containsID(id uint64) bool {
	if c.paths[""] == "" {
		return false
	}
	found := false
	_ = walk(c.paths[""], func(n node) error { // one that is gone does not have the id
		s, err := n.stat()
		found = found || err == nil && s.Ino == id
		return nil
	}, nil)
	return found
}

// HasEnded reports whether all threads of a pidfd's process have ended.
func HasEnded(pidfd int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n > 0, os.NewSyscallError("poll", err)
		}
	}
}

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
// before stays frozen, and the signal arrives after the thaw.
//
// Linux 6.18 kills at birth a process that is later cloned with CLONE_INTO_CGROUP into a cgroup in which cgroup.kill
// was written, so the caller has to check that it is alive. Joining through cgroup.procs is safe.
//
// It succeeds if the cgroup is gone. For the root of a hierarchy, a cgroup that contains the calling process, and one
// without a path, the error is errdefs.ErrFailedPrecondition.
func (c *Cgroup) Kill(ctx context.Context, sig syscall.Signal) error {
	if err := c.refuseKill(); err != nil {
		return err
	}
	if sig == syscall.SIGKILL && !c.mayContainSelf() {
		c.writeKill()
	}
	for round, wait := 0, firstPoll; ; round, wait = round+1, min(2*wait, lastPoll) {
		if pids, err := c.others(); len(pids) == 0 {
			return err
		}
		if sig != syscall.SIGKILL {
			return c.signalFrozen(ctx, sig)
		}
		if err := c.killRound(ctx, round); err != nil {
			return err
		}
		if !sleep(ctx, wait) {
			pids, err := c.others()
			if err == nil && len(pids) == 0 {
				return nil
			}
			left := fmt.Errorf("kill cgroup %s: %s left: %w", c, describe(pids), context.Cause(ctx))
			return errors.Join(left, err)
		}
	}
}

// Signal sends a signal other than SIGKILL, like Kill but without a freeze: the thaw would end the freeze of another
// caller. It may miss a process that is being forked.
func (c *Cgroup) Signal(sig syscall.Signal) error {
	if err := c.refuseKill(); err != nil {
		return err
	}
	return c.signalEach(sig, nil)
}

// SignalThose sends sig, like Signal, to the processes for which match is true. Nobody else can get the id of one while
// match is called.
func (c *Cgroup) SignalThose(sig syscall.Signal, match func(pid int) bool) error {
	return c.signalEach(sig, match)
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

// others is Procs, but returns nothing for a cgroup that is gone, and an error if the calling process is in it.
func (c *Cgroup) others() ([]int, error) {
	pids, err := c.Procs()
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case slices.Contains(pids, os.Getpid()):
		return nil, fmt.Errorf("kill cgroup %s: it holds this process: %w", c, errdefs.ErrFailedPrecondition)
	}
	return pids, err
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

// writeKill sends SIGKILL to all processes through cgroup.kill, and reports whether it could.
func (c *Cgroup) writeKill() bool {
	if c.paths[""] == "" {
		return false
	}
	err := Write(filepath.Join(c.paths[""], "cgroup.kill"), "1")
	if err != nil { // there is no such file, or the cgroup is gone or threaded, in which case the kernel refuses
		log.L.WithError(err).WithField("cgroup", c.String()).Debug("no cgroup.kill")
	}
	return err == nil
}

// killRound sends SIGKILL once to all processes, in the best way the machine has.
func (c *Cgroup) killRound(ctx context.Context, round int) error {
	switch {
	// On hybrid the v2 hierarchy has the same processes, unless somebody moved some in one hierarchy only. The second
	// round is for these.
	case !c.unified && round > 0, !c.writeKill():
		return c.signalFrozen(ctx, syscall.SIGKILL)
	case !c.unified:
		return c.Thaw()
	}
	return nil
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
	err = c.signalEach(sig, nil)
	if sig == syscall.SIGKILL {
		err = errors.Join(err, c.Thaw())
	}
	return err
}

// signalEach sends sig to each process that is in the cgroup now. After an id was read, its process may end and another
// process may get the id. So each process is pinned first (os.FindProcess opens a pidfd), and only those that the
// cgroup still lists after that are signalled, if match, which may be nil, is true.
func (c *Cgroup) signalEach(sig syscall.Signal, match func(pid int) bool) error {
	pids, err := c.others()
	for batch := range slices.Chunk(pids, batchSize) {
		err = errors.Join(err, c.signalBatch(batch, sig, match))
	}
	return err
}

func (c *Cgroup) signalBatch(pids []int, sig syscall.Signal, match func(pid int) bool) error {
	procs := make([]*os.Process, 0, len(pids))
	for _, pid := range pids {
		p, err := os.FindProcess(pid)
		if err != nil {
			return fmt.Errorf("signal process %d of cgroup %s: %w", pid, c, err)
		}
		defer p.Release() //nolint:errcheck // it closes the pidfd and cannot fail
		procs = append(procs, p)
	}
	listed, err := c.others()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range procs {
		if _, ok := slices.BinarySearch(listed, p.Pid); !ok || match != nil && !match(p.Pid) {
			continue
		}
		if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("signal process %d of cgroup %s: %w", p.Pid, c, err))
		}
	}
	return errors.Join(errs...)
}
