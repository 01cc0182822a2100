// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package listen opens the sockets that a container's first process finds open (socket activation, sd_listen_fds(3)).
//
// That comes in two steps. [Open] makes them before there is a container, in its network namespace, since init can be
// given descriptors only while it is started. [Bind] gives them their addresses when all of the container is set up but
// its program does not run: paths are resolved among its mounts, and what its hooks did to its network counts.
//
// The files of those with a path are removed by [Bound.Remove], or, by a process that has nothing but what [Bound.Left]
// listed, by [RemoveLeft].
//
// Open runs a goroutine on a thread of its own, which changes namespace and ends with it; Open waits for its answer.
// RemoveLeft runs one that ends when the volumes answer. There are no locks.
//
// Promises: whatever the container's file system holds, a path never leads out of it. What Open or Bind made when it
// fails is gone when it returns.
package listen
