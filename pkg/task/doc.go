// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package task is the pod: it knows which containers exist, sets up and
// removes what lies around each (bundle, root file system, record on disk), and
// decides when the shim has nothing left to do.
//
// With the Sandbox API the pod has a life of its own (podstage.go): it is made
// before its containers (pod.go), and its end is theirs (podstop.go). Without it
// the shim ends with the last container.
//
// # Goroutines
//
// That of the cpuset.Reconciler, while a container follows the CPUs of another
// cgroup; Close ends it. That of a stop of the pod, which ends with the
// containers and within the grace that they are given. And one that waits for
// the process that holds the pod's namespaces, if that is not the shim; it ends
// with that process. And a timer, once the end of a pod that is nobody's has
// failed (unattended.go); it ends with the shim.
//
// A container that tells when it is ready has that of its notify.Receiver, which
// its removal joins, and during its Start one that waits for it, which ends with
// the time-out or the container's exit at the latest.
//
// # Locks
//
// mu guards the registry and the pod's stage, and is never held over anything
// that blocks; the id of a container that is being created is reserved by an
// entry without a container. Delete of such a one ends its Create. The pod's
// turn is taken before mu, by start and by the goroutine of a stop. that of
// index is taken last: small files are written with it.
//
// # Death
//
// Each container has a state file in its bundle, and the pod's bundle has an index
// of all of them, so that the shim binary's delete command can clean up after a
// shim that was killed, with nothing but what is on disk (pkg/cleanup).
package task
