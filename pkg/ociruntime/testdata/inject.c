// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Traces process 1, which waits in a system call, lets it make the system call of the number in argv[1] with the
// arguments 0 to 3 in argv[2] to argv[5], and prints the result. pod_test.go runs it as the init of a container.

#define _GNU_SOURCE
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
	struct user_regs_struct r;
	struct iovec all = {&r, sizeof r};
	long v[5];
	int status;
	for (int i = 0; i < 5; i++)
		v[i] = argc > i + 1 ? strtol(argv[i + 1], 0, 0) : 0;
	setvbuf(stdout, 0, _IOLBF, 0);
	if (ptrace(PTRACE_ATTACH, 1, 0, 0) < 0 || waitpid(1, &status, __WALL) != 1 ||
	    ptrace(PTRACE_GETREGSET, 1, NT_PRSTATUS, &all) < 0) {
		perror("attach");
		return 1;
	}
	printf("attached\n");
#if defined(__x86_64__)
	r.rip -= 2; // to the instruction, which the kernel would do to restart the call
	r.orig_rax = -1;
	r.rax = v[0], r.rdi = v[1], r.rsi = v[2], r.rdx = v[3], r.r10 = v[4];
#else // arm64: the kernel has done so before the stop
	r.regs[8] = v[0];
	for (int i = 0; i < 4; i++)
		r.regs[i] = v[i + 1];
#endif
	if (ptrace(PTRACE_SETREGSET, 1, NT_PRSTATUS, &all) < 0 || ptrace(PTRACE_SINGLESTEP, 1, 0, 0) < 0 ||
	    waitpid(1, &status, __WALL) != 1 || !WIFSTOPPED(status) || ptrace(PTRACE_GETREGSET, 1, NT_PRSTATUS, &all) < 0) {
		perror("step");
		return 1;
	}
#if defined(__x86_64__)
	printf("result %ld\n", (long)r.rax);
#else
	printf("result %ld\n", (long)r.regs[0]);
#endif
	return 0;
}
