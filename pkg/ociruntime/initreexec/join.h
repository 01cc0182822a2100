// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// A request of pkg/ociruntime to the first stage of a container's init: strings, each with a zero byte at its end. The
// first is the directory of the container's cgroup of version 2, or empty; then come those of version 1, V1_MAX at
// most.

#define REQUEST_MAX 65536
#define V1_MAX 64
#define CPUS_MAX 65536
