// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

#include <stddef.h>
#include <stdint.h>

// What detach.c reports to the Go part of the process that it split off.
extern struct detached {
	int error;    // errno of the split that failed
	int caller;   // pid of the process that ran `start`
	int original; // descriptor on which the original process waits for its exit code; -1 without a split
	char *args;   // the process's arguments, as ps shows them
	size_t size;  // how many bytes they are
	uint64_t digest; // of the request, without the id; 0 if it is not known
} detached;

// answer_delete ends the process if it is a delete command whose answer the shim has left.
void answer_delete(int argc, char **argv);

// SHIM_LINK is the link to the socket of a shim that takes further pods, from their bundles, by the digest of its request.
#define SHIM_LINK "../.shim-%016jx"

// answer_start ends the process if it is a start command that a shim has answered.
void answer_start(int argc, char **argv);
