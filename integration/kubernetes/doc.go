// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package kubernetes tests what a kubelet does. A cluster of one node, with a containerd, directories, namespaces and a
// network of its own, runs a table of cases in three ways: with the runc shim, and with this shim as deploy/install.sh
// and deploy/runtimeclass.yaml give it to nodes, with a pause container and without. What is seen is compared: the
// output of kubectl, and the status of the pods. After each group of cases nothing may be left of it.
//
// A case has pods, and a shell script with its output. In it:
//   - kubectl is kubectl, in a namespace of the case's own, and pods have the runtime class;
//   - await WANT COMMAND… runs the command until its output is WANT;
//   - ready POD…, phase PHASE POD…, and get POD JSONPATH do what they say;
//   - $W is a directory of the case's own.
//
// `make test-kubernetes` sets SHIM_TEST_KUBERNETES, without which nothing is tested: Kubernetes takes minutes to build.
// With WRITE=1 it writes docs/compatibility.md's table.
package kubernetes
