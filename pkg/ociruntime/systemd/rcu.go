// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"path/filepath"
	"sync/atomic"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
)

// RCUWarmup starts early the RCU grace period that systemd's first move of a process into a scope would wait for, some
// milliseconds (kernel/cgroup/cgroup.c, cgroup_attach_lock; kernel/rcu/sync.c). The zero value is ready.
type RCUWarmup struct{ running atomic.Bool }

// Start moves this process to the cgroup that it is in, which changes nothing. It returns immediately, and does nothing
// while an earlier warm-up runs. Its goroutine ends with the kernel's wait, which cannot be canceled: nobody joins it.
func (w *RCUWarmup) Start() {
	if !w.running.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.running.Store(false)
		if dir, err := OwnCgroup(); err == nil {
			_ = cgroups.WriteFile(dir, cgroups.CgroupProcesses, "0") // if it fails, the wait comes later
		}
	}()
}

// OwnCgroup returns the directory of this process's cgroup in the hierarchy that limits processes.
func OwnCgroup() (string, error) {
	if !cgroups.IsCgroup2UnifiedMode() {
		return cgroups.GetOwnCgroupPath("pids")
	}
	paths, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	return filepath.Join(fs2.UnifiedMountpoint, paths[""]), err
}
