// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// What pkg/engine sends to the first stage of a container's init: strings that end with a zero byte each. The first is the
// directory of the container's cgroup of version 2, or empty; the others are files tasks, of version 1.

#define REQUEST_MAX 65536
#define CPUS_MAX 65536
