// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package ociruntime

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"sandbox.internal/shim/pkg/cgroup"
)

// anticipation has the kernel do beforehand what the first process waits for that is moved into a cgroup, as systemd does
// with the first of a scope: a grace period of RCU, several milliseconds, before it may lock out forks
// (kernel/cgroup/cgroup.c, cgroup_attach_lock; kernel/rcu/sync.c). Moves that follow within the next grace period do not
// wait. So this process moves itself to where it is: nothing changes, and the wait passes beside other work.
type anticipation struct{ underWay atomic.Bool }

// begin starts a goroutine that ends with the kernel's wait, which nothing can cut short; so nobody joins it.
func (a *anticipation) begin() {
	if !a.underWay.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer a.underWay.Store(false)
		if procs := ownProcs(); procs != "" {
			move(procs)
		}
	}()
}

// move moves this process into the cgroup of a file cgroup.procs. If it may not, the wait comes later. Where no cgroup file
// system is mounted none is made in its place.
func move(procs string) {
	f, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString("0")
	_ = f.Close() // a write to it is done when it returns
}

// ownProcs is the file cgroup.procs of the cgroup in which this process is, in any hierarchy; "" where it is not known.
func ownProcs() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	var mount, hierarchy string
	switch cgroup.Detect() {
	case cgroup.Unified:
		mount, hierarchy = "/sys/fs/cgroup", "0::"
	case cgroup.Hybrid:
		mount, hierarchy = "/sys/fs/cgroup/unified", "0::"
	case cgroup.Legacy:
		mount, hierarchy = "/sys/fs/cgroup/pids", ":pids:"
	}
	for line := range strings.Lines(string(text)) {
		if _, path, ok := strings.Cut(line, hierarchy); ok {
			return filepath.Join(mount, strings.TrimSpace(path), "cgroup.procs")
		}
	}
	return ""
}
