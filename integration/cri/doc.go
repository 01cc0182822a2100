// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package cri runs pods as a kubelet does: through the CRI API of a private containerd, with a CNI bridge, in mount and
// network namespaces of the process's own. Its tests are the features of CRI, for each way to run a pod; the bench uses
// it too.
//
// A program calls Isolate first of all. It then makes a Daemon, which is a harness.Containerd with the CRI plugin, and
// runs pods with one of the daemon's Handlers. A kubelet is played: it makes a pod's cgroup before the pod (MakeCgroup)
// and removes it after.
//
// SHIM_TEST_SANDBOXER chooses one way to run pods, the name of a sandboxer of containerd; SHIM_TEST_RUNTIME another
// shim.
package cri
