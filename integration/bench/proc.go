// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/shim/integration/harness"
)

// parent is the pid of the process that pid is a child of: for a container's init, its shim.
func parent(pid int) (int, error) {
	text, err := harness.ProcField(pid, "status", "PPid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// rollup reads a line of smaps_rollup, in MiB.
func rollup(pid int, name string) (float64, error) {
	text, err := harness.ProcField(pid, "smaps_rollup", name)
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
	return kib / 1024, err
}

// pss adds up the PSS of processes, in MiB.
func pss(pids ...int) (sum float64, err error) {
	for _, pid := range pids {
		mib, e := rollup(pid, "Pss")
		sum, err = sum+mib, errors.Join(err, e)
	}
	return sum, err
}

// cpuTime is how long the threads of a process have run, by its clock (clock_getcpuclockid(3)).
func cpuTime(pid int) (time.Duration, error) {
	const scheduler = 2
	var spec unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &spec); err != nil {
		return 0, fmt.Errorf("CPU time of %d: %w", pid, err)
	}
	return time.Duration(spec.Nano()), nil
}

// machineTime is how long the CPUs of the machine have not been idle: the first line of /proc/stat (proc_stat(5))
// without what is idle, waits or was stolen, and without guests, whose time is in the user's. A tick is 10 ms (USER_HZ)
// on all architectures.
func machineTime() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, iowait, irq, softirq int64
	if _, err := fmt.Sscanf(string(stat), "cpu %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq,
		&softirq); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return time.Duration(user+nice+system+irq+softirq) * 10 * time.Millisecond, nil
}
