// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"path/filepath"
	"sync/atomic"

	"github.com/opencontainers/cgroups"
)

// RCUWarmup starts early the RCU grace period that systemd's first move of a process into a scope would wait for:
// several milliseconds, before the kernel may lock out forks (kernel/cgroup/cgroup.c, cgroup_attach_lock;
// kernel/rcu/sync.c). Moves within the next grace period do not wait. It moves this process to the cgroup that it is
// already in, which changes nothing. The zero value is ready.
type RCUWarmup struct{ running atomic.Bool }

// Start returns immediately, and does nothing while an earlier warm-up runs. Its goroutine ends when the kernel's wait
// does, which cannot be canceled, so nobody joins it.
func (w *RCUWarmup) Start() {
	if !w.running.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.running.Store(false)
		if dir, err := ownCgroup(); err == nil {
			_ = cgroups.WriteFile(dir, cgroups.CgroupProcesses, "0") // if it fails, the wait comes later
		}
	}()
}

// ownCgroup returns the directory of this process's cgroup, in any hierarchy.
func ownCgroup() (string, error) {
	const root = "/sys/fs/cgroup"
	paths, err := cgroups.ParseCgroupFile("/proc/self/cgroup") // by controller, "" for version 2
	switch {
	case cgroups.IsCgroup2UnifiedMode():
		return filepath.Join(root, paths[""]), err
	case cgroups.IsCgroup2HybridMode():
		return filepath.Join(root, "unified", paths[""]), err
	}
	return filepath.Join(root, "pids", paths["pids"]), err
}
