// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package task is the registry of a shim's containers: it creates them with all that surrounds them, starts, stops and
// deletes them, and decides when the shim has nothing left to do. With the Sandbox API the pod has a life of its own,
// which pkg/podsandbox controls from above (pod.go). Without it the shim ends with the last container.
//
// Create reads as follows: reserve the id, read the configuration and the settings (pkg/settings), list the hooks that
// make what surrounds the container (create.go), and have pkg/process run them around the runtime's Create.
//
// # Goroutines
//
// Start has one for a container that tells when it is ready; it ends with the time-out or with init's exit. StopAll and
// StopContainers have one for each container, and wait for them. Hooks own theirs: the cpuset.Reconciler's ends with
// the last container that follows a source, or with Close; the notify.Receiver's with the container.
//
// # Locks
//
// Manager.mu guards the registry, and whether containers may be created. Container.mu guards what is learned of one
// container while it runs. Neither is held over anything that blocks. An entry without a container reserves the id
// while it is being created; Delete of that id cancels the Create. index has a lock of its own, held while small files
// are written, and takes no other.
package task
