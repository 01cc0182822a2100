// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ProcessInfo is a process of a container, as the kernel shows it (proc_pid_stat(5)).
type ProcessInfo struct {
	Pid     int
	Exec    string // the exec to which it belongs; empty: none
	First   bool   // it is the first one of the exec, or of the container
	Name    string // of its program, which the process can change
	Started time.Time
	CPU     time.Duration // in steps of tick
	RSS     uint64        // bytes
	parent  int
}

// tick is the unit of times in /proc/PID/stat: USER_HZ is 100 on each architecture that the shim runs on.
const tick = 10 * time.Millisecond

// Processes lists the processes of the container in the order of their ids. The list is partial for a container without
// a cgroup: then it has the descendants of the first processes of the container and of its execs. An orphan becomes a
// child of init only in a PID namespace of the container's own.
func (c *Task) Processes() (list []ProcessInfo, partial bool, err error) {
	owners, first := c.Owners()
	pids := func() ([]int, error) { return c.Cgroup().Procs() }
	before, err := pids()
	if partial = errdefs.IsNotFound(err); partial {
		pids = func() ([]int, error) { return descendants(first), nil }
		before, err = pids()
	}
	if err != nil {
		return nil, partial, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	boot, err := bootTime()
	if err != nil {
		return nil, partial, err
	}
	for _, pid := range before {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		p, err := parseStat(stat, boot)
		if err != nil {
			return nil, partial, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		p.Pid, p.Exec, p.First = pid, owners[pid], first[pid]
		list = append(list, p)
	}
	// The id of a process that ended may have been reused outside the container before it was read.
	after, err := pids()
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, partial, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	still := map[int]bool{}
	for _, pid := range after {
		still[pid] = true
	}
	list = slices.DeleteFunc(list, func(p ProcessInfo) bool { return !still[p.Pid] })
	inherit(list)
	return list, partial, nil
}

// descendants returns the processes in first and their descendants, in the order of their ids.
func descendants(first map[int]bool) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	parents := map[int]int{}
	for _, path := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		stat, readErr := os.ReadFile(path) // fails for one that has ended
		if p, parseErr := parseStat(stat, time.Time{}); err == nil && readErr == nil && parseErr == nil {
			parents[pid] = p.parent
		}
	}
	for pid := range parents {
		// The parent of the first process of all is 0. Reused ids may form a cycle.
		for p, n := pid, 0; p != 0 && n < len(parents); p, n = parents[p], n+1 {
			if first[p] {
				pids = append(pids, pid)
				break
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// inherit gives a process whose exec is not known that of its parent. One whose parent has ended is a child of the
// container's first process.
func inherit(list []ProcessInfo) {
	seen := make([]bool, len(list))
	for start := range list {
		var way []int // from start to one that is known, each of which is seen once
		exec := ""
		for i, ok := start, true; ok; {
			if p := list[i]; p.Exec != "" || p.First || seen[i] {
				exec = p.Exec
				break
			}
			seen[i] = true
			way = append(way, i)
			i, ok = slices.BinarySearchFunc(list, list[i].parent, func(q ProcessInfo, pid int) int { return q.Pid - pid })
		}
		for _, i := range way {
			list[i].Exec = exec
		}
	}
}

// bootTime returns when the machine was started.
func bootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, os.NewSyscallError("clock_gettime", err)
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}

// parseStat reads /proc/PID/stat. The name is in parentheses and may contain any bytes.
func parseStat(stat []byte, boot time.Time) (p ProcessInfo, err error) {
	begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if begin < 0 || end < begin {
		return ProcessInfo{}, fmt.Errorf("no name in %q", stat)
	}
	p.Name = strings.ToValidUTF8(string(stat[begin+1:end]), "?")
	const state = 3 // the field that follows the name has this number
	fields := strings.Fields(string(stat[end+1:]))
	number := func(field int) (n int64) {
		if field-state >= len(fields) {
			err = fmt.Errorf("no field %d in %q", field, stat)
			return 0
		}
		var bad error
		if n, bad = strconv.ParseInt(fields[field-state], 10, 64); bad != nil {
			err = bad
		}
		return n
	}
	p.parent = int(number(4))
	p.CPU = time.Duration(number(14)+number(15)) * tick
	p.Started = boot.Add(time.Duration(number(22)) * tick)
	p.RSS = uint64(number(24)) * uint64(os.Getpagesize())
	return p, err
}
