// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// What pkg/ociruntime sends to the first stage of a container's init: strings that end with a zero byte each, and before them a letter.
//
// MAKE, which may come first and has no answer: directories of cgroups of version 1, to make and to enter.
//
// ENTER, which has an errno for an answer: the directory of the container's cgroup of version 2, or an empty string; then those of version 1,
// and first those that MAKE had.

#define MAKE 'm'
#define ENTER 'e'
#define REQUEST_MAX 65536
#define CPUS_MAX 65536
