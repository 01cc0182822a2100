// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

#ifndef LAUNCH_CAPTURE_H
#define LAUNCH_CAPTURE_H

#include <stdint.h>

// A filter that a thread wanted to load.
struct capture {
	uint64_t flags;
	uint32_t length; // in instructions
	void *program;   // of malloc(3); NULL if there was none
};

// Answers the thread of the listener that its filters were loaded, and keeps the last, until the thread is gone.
// It adds 1 to the eventfd ready once it needs the Go runtime no more. Returns an errno, or 0.
int capture_filter(int listener, int ready, struct capture *c);

#endif
