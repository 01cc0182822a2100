// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package pod makes what the containers of a pod share, without a container of its own: the network, IPC and UTS
// namespaces, the files of /etc that Kubernetes manages, and /dev/shm.
//
// The namespaces are held by the shim's main thread, so the shim's pid is the pod's: containerd's CRI plugin gives each
// container /proc/PID/ns/net, ipc and uts of that pid (internal/cri/opts, WithPodNamespaces), and what is the host's
// for the pod is the main thread's own. A pod whose containers share a PID namespace, or have a user namespace, has a
// process for that, which pkg/pod/nsholder starts; its pid is the pod's then. docs/decisions/0005 has the reasons.
//
// The files are in file systems of their own in the bundle, and [Pod.Adapt] mounts them into containers that do not bring
// their own. The cgroup and the network namespace are their owners'; they are looked at and joined, and left as they
// were. A cgroup that is not there is made, and removed when it is empty after the pod.
//
// # Goroutines and locks
//
// A pod has no goroutine but the holder's waiter. Its sysctls are written by a goroutine on a thread that ends with it,
// and for which the caller waits. There is no lock: Create, Start and Close are not called at the same time, and what
// the other methods read does not change after Start.
//
// # Promises
//
//   - What Create or Start did is undone when they fail, and by Close.
//   - No thread but the main one is ever in a namespace of the pod and runs anything else after that.
package pod
