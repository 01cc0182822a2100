// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package podsandbox is the life of a pod by containerd's Sandbox API: create, start, stop, wait, status, shutdown.
//
// A [Controller] makes what the pod has by pkg/pod, and tells pkg/task's registry whether containers may be created and
// what they get of the pod. Without the Sandbox API there is no pod, and the shim ends with its last container.
//
// # Goroutines
//
//   - A stop has one. It ends with the containers, within the grace that they are given.
//   - One waits for the process that holds the pod's namespaces, if that is not the shim. It ends with that process.
//   - After a failed shutdown of an abandoned pod there is a timer. It ends with the shim.
//
// # Locks
//
// mu guards the pod's stage and is never held over anything that blocks. opLock is taken before it, by Start, by the
// goroutine of a stop, and by the end of a shutdown. task.Manager's lock is taken after mu.
package podsandbox
