// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/shim/integration/harness"
)

// account counts the CPU time of shims, of what they start, and of their containers: all that takes part in an exec but
// containerd. That is a cgroup's count, which misses no process however short, and does not depend on who waits for it.
type account struct {
	dir  string // the cgroup of all containers of a namespace, where CPU time is counted
	file string // in dir
	unit time.Duration
}

// shims is the cgroup of a namespace's shims.
const shims = "shims"

// openAccount opens the account of a namespace and puts processes, the shims, into a cgroup beside those of the
// containers. Whatever a shim starts begins there or in a container's cgroup. closeAccount removes it.
func openAccount(namespace string, pids ...int) (*account, error) {
	a := &account{dir: filepath.Join("/sys/fs/cgroup", namespace), file: "cpu.stat", unit: time.Microsecond}
	if harness.CgroupMode() != "v2" {
		*a = account{
			dir: filepath.Join("/sys/fs/cgroup/cpuacct", namespace), file: "cpuacct.usage",
			unit: time.Nanosecond,
		}
	}
	group := filepath.Join(a.dir, shims)
	if err := os.MkdirAll(group, 0o755); err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// used is the CPU time so far.
func (a *account) used() (time.Duration, error) {
	name := filepath.Join(a.dir, a.file)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	var n int64
	if _, err := fmt.Sscan(strings.TrimPrefix(string(text), "usage_usec "), &n); err != nil { // v2 has more lines below
		return 0, fmt.Errorf("parse %s: %w", name, err)
	}
	return time.Duration(n) * a.unit, nil
}

// closeAccount removes the cgroups of accounts. It is tried again while a shim ends.
func closeAccount(namespace string) {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/cpuacct"} {
		_ = os.Remove(filepath.Join(root, namespace, shims)) // what stays is reported as left behind
	}
}
