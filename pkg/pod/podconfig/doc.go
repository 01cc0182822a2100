// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package podconfig is the part of CRI's PodSandboxConfig that a shim acts on, as a generated message. k8s.io/cri-api
// itself would link gRPC and all of CRI into the shim. `make generate` makes it.
package podconfig
