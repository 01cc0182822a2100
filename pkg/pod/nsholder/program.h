// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// What the holder program and the shim agree on. Both are parts of one binary, so there is no version.

#ifndef HOLDER_PROGRAM_H
#define HOLDER_PROGRAM_H

#include <stdint.h>

// The descriptors that the program is started with, besides the standard streams. Those of namespaces can be absent.
enum {
	FD_SOCKET = 3, // takes the request, gives messages
	FD_NET = 4,    // the network namespace to join
	FD_USER = 5,   // the user namespace to join
};

#define NAME_SIZE 64 // the longest that the kernel takes

struct request {
	uint32_t join_net;   // 1: join that of FD_NET
	uint32_t join_user;  // 1: join that of FD_USER
	uint32_t make_user;  // 1: make a user namespace and wait until it is mapped
	uint32_t make;       // CLONE_NEW… of the others to make
	uint32_t make_pid;   // 1: be the first process of a PID namespace
	uint32_t uid, gid;   // to become
	uint32_t name_size;  // of name
	char name[NAME_SIZE]; // host name
};

// What the program tells, each as a message of its own.
struct message {
	uint32_t kind;
	uint32_t value; // the pid or the errno
	uint32_t step;  // of MESSAGE_FAILED
};

enum {
	MESSAGE_MAP = 1, // the user namespace waits for its mappings, and the program for a byte
	MESSAGE_PID,     // of the process that goes on; this one ends
	MESSAGE_READY,   // all is done; it waits for a byte
	MESSAGE_FAILED,
};

enum {
	STEP_REQUEST,
	STEP_ROOT,
	STEP_JOIN_NET,
	STEP_JOIN_USER,
	STEP_MAKE_USER,
	STEP_MAKE,
	STEP_NAME,
	STEP_FORK,
	STEP_GROUPS,
	STEP_GID,
	STEP_UID,
	STEP_CAPABILITIES,
	STEP_PRIVILEGES,
	STEP_DUMPABLE,
	STEP_DEATH,
	STEPS,
};

// The code of the program in the binary of the shim, which the linker finds the ends of, and where it begins to run.
extern char __start_holder[], __stop_holder[], holder_entry[];

#endif
