// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"cmp"
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

const procsFile = "cgroup.procs"

// Procs returns the sorted ids of all processes in the cgroup and those nested in it: on v1 the union over the
// hierarchies, since a process enters one after the other. It leaves out processes of other pid namespaces. A cgroup
// that is gone gives errdefs.ErrNotFound.
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
			return nil, fmt.Errorf("list processes of cgroup %s: %w", dir, err)
		}
	}
	if !found {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", c, errdefs.ErrNotFound)
	}
	slices.Sort(pids) // the kernel promises neither an order nor that it lists a process once
	return slices.Compact(pids), nil
}

func procsBelow(dir string) (pids []int, err error) {
	err = walk(dir, func(dir string) error {
		text, err := os.ReadFile(filepath.Join(dir, procsFile))
		if errors.Is(err, unix.EOPNOTSUPP) { // threaded: the domain above lists the processes (cgroup-v2.rst, "Threads")
			return nil
		}
		if err == nil {
			pids, err = parseProcs(pids, text)
		}
		return err
	}, nil)
	return pids, err
}

func parseProcs(pids []int, text []byte) ([]int, error) {
	for line := range bytes.FieldsSeq(text) {
		pid, err := strconv.Atoi(string(line))
		if err != nil {
			return pids, fmt.Errorf("parse %s: %w", procsFile, err)
		}
		if pid > 0 { // 0 is a process outside of our pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
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

// describe returns the number of processes, and the first few as in "12 (sh) D" (proc_pid_stat(5)).
func describe(pids []int) string {
	const most = 3
	var names []string
	for _, pid := range pids[:min(len(pids), most)] {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // there is none of a process that is gone
		end := min(bytes.LastIndexByte(stat, ')')+len(") D"), len(stat))
		names = append(names, cmp.Or(string(stat[:end]), strconv.Itoa(pid)))
	}
	return fmt.Sprintf("%d processes [%s]", len(pids), strings.Join(names, ", "))
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

// Kill sends SIGKILL to all processes of the cgroup and those nested in it until none is left or ctx ends; the error
// names those left and wraps the cause of ctx. A cgroup without path, or with the calling process, gives
// errdefs.ErrFailedPrecondition.
//
// Kill writes cgroup.kill (Linux 5.14), which no fork can outrun; without it, it freezes, signals and thaws. After
// cgroup.kill, Linux 6.18 kills a process that CLONE_INTO_CGROUP puts there, so the caller has to check that it lives.
func (c *Cgroup) Kill(ctx context.Context) error {
	if c.IsNone() {
		return fmt.Errorf("kill cgroup: no path known: %w", errdefs.ErrFailedPrecondition)
	}
	if !c.mayContainSelf() {
		c.writeKill()
	}
	for round, wait := 0, firstPoll; ; round, wait = round+1, min(2*wait, lastPoll) {
		pids, err := c.others()
		if err != nil || len(pids) == 0 {
			return err
		}
		if round > 0 && ctx.Err() != nil {
			return fmt.Errorf("kill cgroup %s: %s left: %w", c, describe(pids), context.Cause(ctx))
		}
		if err := c.killRound(ctx, round); err != nil {
			return err
		}
		sleep(ctx, wait)
	}
}

func (c *Cgroup) killRound(ctx context.Context, round int) error {
	switch {
	// On hybrid the v2 hierarchy has the same processes, unless somebody moved some in one hierarchy only. The second
	// round is for these.
	case !c.unified && round > 0, !c.writeKill():
		if err := c.freeze(ctx); err != nil {
			log.L.WithError(err).WithField("cgroup", c.String()).Debug("signalling processes that are not frozen")
		}
		return errors.Join(c.Signal(unix.SIGKILL, nil), c.Thaw())
	case !c.unified:
		return c.Thaw()
	}
	return nil
}

// writeKill writes cgroup.kill, and reports whether it could: not in a cgroup that is gone or threaded.
func (c *Cgroup) writeKill() bool {
	return c.paths[""] != "" && Write(filepath.Join(c.paths[""], "cgroup.kill"), "1") == nil
}

// mayContainSelf reports whether the name of the cgroup is in the paths of the calling process, which are relative to a
// cgroup namespace.
func (c *Cgroup) mayContainSelf() bool {
	own, err := os.ReadFile("/proc/self/cgroup")
	paths := strings.ReplaceAll(string(own), "\n", "/")
	return err != nil || slices.ContainsFunc(c.dirs, func(dir string) bool {
		return strings.Contains(paths, "/"+filepath.Base(dir)+"/")
	})
}

// others is Procs, but a cgroup that is gone is empty, and one with the calling process is an error.
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

// Signal sends sig to each process of Procs for which match is true; nil matches all. A pidfd keeps the id of a process
// from being used again while match runs. A process that is being forked may be missed.
func (c *Cgroup) Signal(sig syscall.Signal, match func(pid int) bool) error {
	const batchSize = 128 // bounds the descriptors that are open at a time
	pids, err := c.others()
	for batch := range slices.Chunk(pids, batchSize) {
		err = errors.Join(err, c.signalBatch(batch, sig, match))
	}
	return err
}

// signalBatch opens pidfds (os.FindProcess) and then signals those processes that the cgroup still lists.
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
	for _, p := range procs {
		if _, ok := slices.BinarySearch(listed, p.Pid); !ok || match != nil && !match(p.Pid) {
			continue
		}
		if signalErr := p.Signal(sig); signalErr != nil && !errors.Is(signalErr, os.ErrProcessDone) {
			err = errors.Join(err, fmt.Errorf("signal process %d of cgroup %s: %w", p.Pid, c, signalErr))
		}
	}
	return err
}
