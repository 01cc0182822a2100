// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
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

// first returns the first processes of the container, even after its exit, and of its execs that run, with the ids of
// the execs.
func (c *Task) first() map[int]string {
	all := c.Execs()
	all[c.Init().Pid()] = ""
	return all
}

// Processes lists the processes of the container in the order of their ids. The list is partial for a container without
// a cgroup: it has only the first processes of the container and of its execs.
func (c *Task) Processes() (list []ProcessInfo, partial bool, err error) {
	first := c.first()
	pids, err := c.Cgroup().Procs()
	if partial = errdefs.IsNotFound(err); partial {
		pids, err = slices.Sorted(maps.Keys(first)), nil
	}
	if err != nil {
		return nil, partial, fmt.Errorf("container %q: %w", c.ID(), err)
	}
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // every Linux has this clock
	boot := time.Now().Add(-time.Duration(up.Nano()))
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		p, err := parseStat(stat, boot)
		if err != nil {
			return nil, partial, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		p.Pid = pid
		p.Exec, p.First = first[pid]
		list = append(list, p)
	}
	inherit(list)
	return list, partial, nil
}

// inherit attributes each process to the exec of its nearest ancestor that is a first process. One whose ancestor has
// ended is a child of the container's first process.
func inherit(list []ProcessInfo) {
	index := map[int]int{}
	for i, p := range list {
		index[p.Pid] = i
	}
	seen := make([]bool, len(list))
	for start := range list {
		var way []int // from start to an ancestor that is known; each process is on one way
		exec := ""
		for i, ok := start, true; ok; i, ok = index[list[i].parent] {
			exec = list[i].Exec
			if list[i].First || seen[i] {
				break
			}
			seen[i] = true
			way = append(way, i)
		}
		for _, i := range way {
			list[i].Exec = exec
		}
	}
}

// parseStat reads /proc/PID/stat. The name is in parentheses and may contain any bytes.
func parseStat(stat []byte, boot time.Time) (p ProcessInfo, err error) {
	begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if begin < 0 || end < begin {
		return ProcessInfo{}, fmt.Errorf("no name in %q", stat)
	}
	p.Name = strings.ToValidUTF8(string(stat[begin+1:end]), "?")
	const state = 3 // number of the field that follows the name
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) <= 24-state {
		return ProcessInfo{}, fmt.Errorf("too few fields in %q", stat)
	}
	number := func(field int) (n int64) {
		n, bad := strconv.ParseInt(fields[field-state], 10, 64)
		err = cmp.Or(err, bad)
		return n
	}
	p.parent = int(number(4))
	p.CPU = time.Duration(number(14)+number(15)) * tick
	p.Started = boot.Add(time.Duration(number(22)) * tick)
	p.RSS = uint64(number(24)) * uint64(os.Getpagesize())
	return p, err
}
