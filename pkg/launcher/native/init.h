// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// A part of program.c: the first process of a container that asked for an init. It runs the container's program as its
// child, reaps orphans, forwards signals, and ends as the child does. It was executed with the rights of the container's
// program (OP_INIT).

// Text of up to seven bytes in a number: compilers put longer arrays into data.
#define TEXT(a, b, c, d, e, f, g) \
	((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 | \
	 (uint64_t)(f) << 40 | (uint64_t)(g) << 48)

CODE static void print(const char *text)
{
	uint64_t size = 0;
	while (text[size]) {
		size++;
		NO_LIBRARY_CALL;
	}
	SYS(SYS_write, 2, text, size);
}

CODE __attribute__((noreturn)) static void end_with_error(long error)
{
	uint64_t reason = TEXT(':', ' ', 'e', 'r', 'r', 'n', 'o');
	uint64_t number = TEXT(' ', '0' + error / 100 % 10, '0' + error / 10 % 10, '0' + error % 10, '\n', 0, 0); // below 200
	print((char *)&reason);
	print((char *)&number);
	end(255);
}

// Runs in the child: makes a session of its own, with the terminal if there is one, as the program has without an init.
CODE __attribute__((noreturn)) static void run_child(char **argv, char **envp)
{
	unsigned long none = 0;
	sys(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none, 0, 0);
	SYS(SYS_setsid, 0, 0, 0);
	SYS(SYS_ioctl, 0, TIOCSCTTY, 0);
	long error = -SYS(SYS_execve, argv[1], argv + 2, envp);
	uint64_t exec = TEXT('e', 'x', 'e', 'c', ' ', 0, 0);
	print((char *)&exec);
	print(argv[1]);
	end_with_error(error);
}

// Reaps all children that have exited, and ends if the program is among them.
CODE static void reap(long program)
{
	bool ended = false;
	int last = 0, status = 0;
	long pid;
	while ((pid = sys(SYS_wait4, -1, (long)&status, WNOHANG, 0, 0, 0)) > 0) {
		if (pid != program)
			continue;
		ended = true;
		last = status;
	}
	if (ended)
		end(WIFEXITED(last) ? WEXITSTATUS(last) : 128 + WTERMSIG(last));
}

// The arguments are its own name, the path of the program, and the program's arguments. The launcher has blocked signals,
// so that none is lost, also those of faults: one of the init itself ends it all the same.
CODE __attribute__((noreturn)) static void run_init(long *stack)
{
	char **argv = (char **)stack + 1, **envp = argv + stack[0] + 1;
	uint64_t name = TEXT('i', 'n', 'i', 't', 0, 0, 0);
	unsigned long handled = ~0UL;
	sys(SYS_rt_sigprocmask, SIG_SETMASK, (long)&handled, 0, sizeof handled, 0, 0);
	SYS(SYS_prctl, PR_SET_NAME, &name, 0);
	SYS(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1, 0); // for a container with the PID namespace of the host
	long program = SYS(SYS_clone, SIGCHLD, 0, 0);
	if (program == 0)
		run_child(argv, envp);
	if (program < 0) {
		uint64_t colon = TEXT(':', ' ', 'f', 'o', 'r', 'k', 0);
		print((char *)&name);
		print((char *)&colon);
		end_with_error(-program);
	}
	for (;;) {
		long sig = sys(SYS_rt_sigtimedwait, (long)&handled, 0, 0, sizeof handled, 0, 0);
		if (sig == SIGCHLD)
			reap(program);
		else if (sig > 0)
			SYS(SYS_kill, program, sig, 0);
		else if (sig != -EINTR)
			end(255);
	}
}
