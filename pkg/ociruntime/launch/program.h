// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// What the launcher program and the shim agree on. Both are parts of one binary, so there is no version.

#ifndef LAUNCH_PROGRAM_H
#define LAUNCH_PROGRAM_H

#include <stdint.h>

// The descriptors that the program is started with, after the standard streams of the process.
enum {
	FD_SOCKET = 3,  // takes the request, gives messages
	FD_INIT = 4,    // pidfd of the container's init
	FD_CONSOLE = 5, // takes the master of the terminal; absent without one
};

// A request is a header, the steps, the relocations, and what these point to. It is made of 64-bit words.
struct header {
	uint64_t size;        // of the whole request in bytes
	uint64_t steps;       // number of them, right after the header
	uint64_t relocations; // number of them, right after the steps: offsets of the words that hold an offset in the
	                      // request, which the program turns into addresses
};

// A step is one system call, or one of the operations below. The first that fails ends the program.
struct step {
	uint64_t op;
	uint64_t call;     // number of the system call of OP_CALL
	uint64_t arg[6];
	uint64_t tolerate; // errnos that are no failure, 16 bits each; TOLERATE_ALL for any
	uint64_t after;    // 1 + index of an earlier step: done only if that one met a tolerated error; 0: always
	uint64_t result;   // what a call that opens a file must return, so that later steps can name it; 0: not looked at
};

#define TOLERATE_ALL UINT64_MAX

enum {
	OP_CALL,     // call arg[0] to arg[5]
	OP_SIGNALS,  // default action for every signal, but for SIGHUP, SIGINT and 32 to 34 that are ignored
	OP_FORK,     // a child of the shim goes on with the next step, in the cgroup of the descriptor arg[0] - 1 if
	             // arg[0] is not 0; this process tells its pid and ends
	OP_PTMX,     // check that arg[0] is a descriptor of the multiplexer of a devpts
	OP_READY,    // tell the shim and wait for its leave to go on
	OP_STDIO,    // give the standard streams to user arg[0]
	OP_HOME,     // store at arg[2] the address of "HOME=" and the home directory of user arg[0] in the file arg[1]
	OP_BOUNDING, // drop the capabilities 0 to arg[1] from the bounding set, but for those in arg[0]
	OP_INSIDE,   // check that the working directory is below the root
	OP_LOOKUP,   // find the first executable file in the list of paths arg[0], which come from PATH if arg[1] is 1
	OP_EXEC,     // run it with the arguments arg[0] and the environment arg[1]
};

// What the program tells of itself.
struct message {
	uint32_t kind;
	uint32_t value;  // the pid or the errno
	uint32_t step;   // index
	uint32_t detail; // of OP_STDIO: the stream; of OP_LOOKUP: what failed; of OP_EXEC: index of the path
};

enum {
	MESSAGE_PID = 1, // of the process that goes on
	MESSAGE_BORN,    // it runs in the cgroup of OP_FORK
	MESSAGE_READY,   // it waits for a byte
	MESSAGE_FAILED,
	MESSAGE_NOT_RUN, // execve failed; the program waits for the words to print, since all is given up that could tell
};

enum {
	LOOKUP_STAT = 1, // no such file, or no permission to look
	LOOKUP_ACCESS,   // not executable
	LOOKUP_NONE,     // none in PATH
	LOOKUP_DOT,      // one in PATH, but relative to the working directory
};

// The largest line of a passwd file, and so the longest name of a home directory.
#define LINE_MAX_SIZE 65536
#define LINE_ROOM (LINE_MAX_SIZE + 64)

// The largest passwd file that is read: half a million users.
#define PASSWD_MAX_SIZE (32 << 20)

// The code of the program in the binary of the shim, which the linker finds the ends of, and where it begins to run.
extern char __start_launcher[], __stop_launcher[], launcher_entry[];

#endif
