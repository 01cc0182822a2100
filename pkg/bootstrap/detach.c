// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// containerd waits for the end of `start`, and the shim has to outlive it. So this process splits while it has one
// thread, before the Go runtime starts: a child continues as `start` and then as the daemon, and the original waits
// until containerd has its answer (docs/decisions/0009-start-becomes-the-daemon.md).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "detach.h"

struct detached detached = { .original = -1 };

// follow is the original process: it exits with the byte that the child sends, or as the child did.
static _Noreturn void follow(pid_t child, int from)
{
	unsigned char code;
	int status;
	if (read(from, &code, 1) == 1)
		_exit(code);
	if (waitpid(child, &status, 0) < 0)
		_exit(1);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

// close_all_but closes what a parent left open without close-on-exec.
static void close_all_but(int kept)
{
	syscall(SYS_close_range, STDERR_FILENO + 1, kept - 1, 0); // fails if there is none between them
	syscall(SYS_close_range, kept + 1, ~0U, 0);
}

// free_arguments moves the arguments, to which the Go runtime keeps pointers, away from where ps reads them.
static int free_arguments(int argc, char **argv)
{
	detached.args = argv[0];
	detached.size = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
	for (int i = 0; i < argc; i++) {
		char *copy = strdup(argv[i]);
		if (!copy)
			return errno;
		argv[i] = copy;
	}
	return 0;
}

// use_one_cpu replaces the GOMAXPROCS of containerd (docs/decisions/0006-memory-of-a-shim.md), but no other number.
static void use_one_cpu(char **env)
{
	static char ours[] = "GOMAXPROCS=1";
	for (; *env; env++)
		if (strcmp(*env, "GOMAXPROCS=2") == 0)
			*env = ours;
}

static void split(int argc, char **argv, char **env)
{
	if (argc < 2 || strcmp(argv[argc - 1], "start") != 0) // no argument may follow the action
		return;
	detached.caller = getppid();
	pid_t original = getpid();
	signal(SIGCHLD, SIG_DFL); // if it were ignored, there would be no status to wait for
	int ends[2];
	pid_t child = -1;
	if (pipe2(ends, O_CLOEXEC) == 0) {
		if (ends[0] > STDERR_FILENO && ends[1] > STDERR_FILENO)
			child = fork();
		else // the answer would go into the pipe
			errno = EBADF;
	}
	if (child < 0) {
		detached.error = errno;
		return;
	}
	if (child > 0) {
		close(ends[1]);
		follow(child, ends[0]);
	}
	close(ends[0]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != original)
		_exit(1);
	signal(SIGHUP, SIG_IGN); // until dropSignals in daemon.go
	detached.original = ends[1];
	close_all_but(ends[1]);
	use_one_cpu(env);
	detached.error = free_arguments(argc, argv);
}

// begin runs before the Go runtime starts. musl passes a constructor no arguments: they lie before the environment,
// with their number (System V ABI, "Process Initialization").
#ifdef __GLIBC__
__attribute__((constructor(102))) static void begin(int argc, char **argv, char **env)
{
	answer_delete(argc, argv);
	answer_start(argc, argv);
	split(argc, argv, env);
}
#else
__attribute__((constructor(102))) static void begin(void)
{
	int argc = 0;
	char **argv = environ - 1;
	for (; (intptr_t)argv[-1] != argc; argc++)
		argv--;
	answer_delete(argc, argv);
	answer_start(argc, argv);
	split(argc, argv, environ);
}
#endif
