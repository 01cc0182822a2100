// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package sandbox is the pod: it knows which containers exist, sets up and
// removes what lies around each (bundle, root file system, record on disk), and
// decides when the shim has nothing left to do.
//
// It owns one goroutine, that of the cpuset.Reconciler, while a container
// follows the CPUs of another cgroup; Close ends it. mu guards the registry and
// is never held over anything that blocks; the id of a container that is being
// created is reserved by an entry without a container. Delete of such a one
// ends its Create.
//
// Each container has a record in its bundle (record.go), so that the shim
// binary's delete command can clean up after a shim that was killed, with
// nothing but what is on disk (remove.go).
package sandbox
