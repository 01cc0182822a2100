// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/containerd/cgroups/v3"
)

// RCUWarmup starts the RCU grace period early that systemd's first move of a process into a scope would wait for:
// several milliseconds, before the kernel may lock out forks (kernel/cgroup/cgroup.c, cgroup_attach_lock;
// kernel/rcu/sync.c). Moves within the next grace period do not wait. It moves this process to the cgroup that it is
// in, which changes nothing. The zero value is ready.
type RCUWarmup struct{ running atomic.Bool }

// Start returns at once, and does nothing while an earlier one runs. Its goroutine ends when the kernel's wait does,
// which cannot be canceled, so nobody joins it.
func (w *RCUWarmup) Start() {
	if !w.running.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.running.Store(false)
		if procs := ownProcs(); procs != "" {
			moveSelf(procs)
		}
	}()
}

// moveSelf moves this process into the cgroup of the file procs. On failure nothing is warmed up, and the wait comes
// later. It makes no file where no cgroup file system is mounted.
func moveSelf(procs string) {
	f, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString("0")
	_ = f.Close() // control files have nothing left to write then
}

// ownProcs is the file cgroup.procs of this process's cgroup, in any hierarchy; "" if unknown.
func ownProcs() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	var mount, hierarchy string
	switch cgroups.Mode() {
	case cgroups.Unified:
		mount, hierarchy = "/sys/fs/cgroup", "0::"
	case cgroups.Hybrid:
		mount, hierarchy = "/sys/fs/cgroup/unified", "0::"
	case cgroups.Legacy, cgroups.Unavailable:
		mount, hierarchy = "/sys/fs/cgroup/pids", ":pids:"
	}
	for line := range strings.Lines(string(text)) {
		if _, path, ok := strings.Cut(line, hierarchy); ok {
			return filepath.Join(mount, strings.TrimSpace(path), "cgroup.procs")
		}
	}
	return ""
}
