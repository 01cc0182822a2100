// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

#include <stddef.h>

// What detach.c reports to the Go part of the process that it split off.
extern struct detached {
	int error;    // errno of the split that failed
	int caller;   // pid of the process that ran `start`
	int original; // descriptor on which the original process waits for its exit code; -1 without a split
	char *args;   // the process's arguments, as ps shows them
	size_t size;  // how many bytes they are
} detached;

// answer_delete ends the process if it is a delete command whose answer the shim has left.
void answer_delete(int argc, char **argv);
