// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// What the program and the caller agree on. Both are parts of one binary, so there is no version.

#ifndef NATIVE_PROGRAM_H
#define NATIVE_PROGRAM_H

#include <stdint.h>

#define FD_SOCKET 3 // takes the request, gives messages

// A request is a header, the steps, the relocations, and the data that these refer to, all in 64-bit words. A relocation
// is the offset in the request of a word that holds an offset in the data, which the program turns into an address.
struct header {
	uint64_t size;        // of the whole request in bytes
	uint64_t steps;       // their number
	uint64_t relocations; // their number
};

// A step is one system call, or one of the operations below. The first that fails ends the program.
struct step {
	uint64_t op;
	uint64_t call;      // number of the system call of OP_CALL
	uint64_t arg[6];
	uint64_t tolerated; // errnos that are not failures, 16 bits each; TOLERATE_ALL for any
	int64_t condition;  // n: done only if step n - 1 failed; -n: only if it succeeded; 0: always
	uint64_t fd;        // descriptor that the call must return, so that later steps can name it; 0: any result
	uint64_t outcome;   // STEP_SKIPPED at first; the program sets it
};

#define TOLERATE_ALL UINT64_MAX

enum { STEP_SKIPPED, STEP_FAILED, STEP_SUCCEEDED }; // failed: with an error that is tolerated

enum {
	OP_CALL,      // call arg[0] to arg[5]
	OP_FORK,      // a child of the caller continues, in the cgroup of descriptor arg[0] - 1 if arg[0] is not 0, and
	              // in new namespaces (CLONE_NEW…) arg[1]; this process reports its pid and ends
	OP_WAIT,      // report that the process waits, until the caller lets it continue
	OP_HOLD,      // like OP_WAIT, but until Run.Resume; then report MESSAGE_RESUMED
	OP_SIGNALS,   // let signals that ask a process to end do so
	OP_INODE,     // check that descriptor arg[0] has the file type arg[1] and the device number arg[2]; if arg[3] is not 0,
	              // that it is inode arg[4] of a file system of that type (statfs(2))
	OP_NOT_PROC,  // check that descriptor arg[0] is not in a procfs
	OP_MAKE,      // make the clean path arg[1] below directory arg[0], with all directories on its way, and open it with
	              // O_PATH: a directory, or a file if descriptor arg[2] is one
	OP_CHECK_CWD, // check that the working directory is below the root
	OP_LOOKUP,    // find the program of name arg[1]: in the first of the directories arg[0] that has it, each of which ends
	              // with a zero byte, and the last with two; or as a path, if arg[0] is 0
	OP_EXEC,      // run that file with the arguments arg[0] and the environment arg[1]
	OP_SLEEP,     // close all descriptors, free the memory and sleep until killed
	OP_INIT,      // run the file of descriptor arg[2], which is an init (init.h), for the file that OP_LOOKUP found:
	              // arg[0] and arg[1] are as in OP_EXEC, with two more arguments first; the second becomes the path
};

// What the program reports.
struct message {
	uint32_t kind;
	uint32_t value;  // the pid or the errno
	uint32_t step;   // index
	uint32_t detail; // of OP_LOOKUP: what failed; of OP_EXEC and OP_INIT: index of the directory
};

enum {
	MESSAGE_PID = 1,    // of the process that continues
	MESSAGE_IN_CGROUP,  // it runs in the cgroup of OP_FORK
	MESSAGE_WAITING,    // for a byte
	MESSAGE_FAILED,
	MESSAGE_NOT_RUN,    // execve failed; the program waits for the text to print on its standard error
	MESSAGE_RESUMED,    // the byte that ends OP_HOLD was read
};

enum {
	LOOKUP_STAT = 1, // no such file, or no permission to look
	LOOKUP_ACCESS,   // not executable
	LOOKUP_NONE,     // none in PATH
	LOOKUP_DOT,      // one in PATH, but relative to the working directory
};

// The code of the program in the binary of the caller.
struct code {
	void *start;         // NULL if the program is not written for the processor
	unsigned long size;  // in bytes
	unsigned long entry; // offset of the first instruction to run
};

struct code native_code(void);

#endif
