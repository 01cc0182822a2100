// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup hides the differences between cgroup v1, hybrid and v2 for the cgroup of one container: its processes,
// how all of them are killed, how it is removed, and when the kernel kills one for want of memory.
//
// It works on the paths that the container runtime made; it makes no cgroup, but with MakeChild and Make, and moves no process.
// A Cgroup is a value that does not change and may be used by any goroutine. Nothing is cached: each call asks the kernel.
//
// An OOMWatch owns one goroutine, which ends when Stop closes the descriptor that it waits on; Stop joins it. The watch's
// mutex is held while the counter is read and while notify runs, so notify must not call the watch.
//
// Promises: a cgroup that is gone is errdefs.ErrNotFound, or success where nothing was to be left (Kill). Kill leaves a
// cgroup that it froze thawed. Kill refuses the root of a hierarchy and a cgroup that holds the calling process.
package cgroup
