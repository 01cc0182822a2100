// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// parent is the pid of the process that pid is a child of: for a container's init, its shim.
func parent(pid int) (int, error) {
	text, err := field(fmt.Sprintf("/proc/%d/status", pid), "PPid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// rollup reads a line of smaps_rollup, in KiB.
func rollup(pid int, name string) (float64, error) {
	text, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
}

// field finds "name: value" in a file of proc.
func field(path, name string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("read %s: no line %q", path, name)
}

// eachThread calls f with the directory of every thread of a process. A thread that ends meanwhile is left out.
func eachThread(pid int, f func(dir string) error) error {
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		return fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	for _, dir := range dirs {
		if err := f(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// cpuTime is how long the threads of a process have run (scheduler/sched-stats.rst, "/proc/<pid>/schedstat").
func cpuTime(pid int) (sum time.Duration, err error) {
	err = eachThread(pid, func(dir string) error {
		text, err := os.ReadFile(filepath.Join(dir, "schedstat"))
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(n)
		return err
	})
	return sum, err
}

// machineTime is how long the CPUs of the machine have not been idle.
func machineTime() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseMachineTime(string(data))
}

// parseMachineTime sums up the first line of /proc/stat (proc_stat(5)) without what is idle, waits or was stolen, and
// without guests, whose time is in the user's. A tick is 10 ms (USER_HZ) on all architectures.
func parseMachineTime(stat string) (time.Duration, error) {
	const (
		tick               = 10 * time.Millisecond
		user, nice, system = 1, 2, 3
		irq, softirq       = 6, 7
	)
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) <= softirq || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, not with the times of all CPUs", line)
	}
	var sum time.Duration
	for _, column := range []int{user, nice, system, irq, softirq} {
		n, err := strconv.ParseInt(fields[column], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat, column %d: %w", column, err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// switchCount is how often each thread of a process has given up a CPU, by the thread's directory. A thread that sleeps
// must wake up to do so again.
type switchCount map[string]int64

func switches(pid int) (switchCount, error) {
	count := switchCount{}
	err := eachThread(pid, func(dir string) error {
		for _, name := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
			text, err := field(filepath.Join(dir, "status"), name)
			if err != nil {
				return err
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return err
			}
			count[dir] += n
		}
		return nil
	})
	return count, err
}

// since counts what came after an earlier count. All that a new thread did is new; what one did that has ended is lost.
func (c switchCount) since(before switchCount) (sum int64) {
	for thread, n := range c {
		sum += n - before[thread]
	}
	return sum
}
