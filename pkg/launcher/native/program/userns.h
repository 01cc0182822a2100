// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// A part of program.c: namespaces that belong to a user namespace, for a process that keeps its rights outside of it.

CODE static char *append_number(char *to, uint64_t n)
{
	uint64_t unit = 1;
	while (n / unit >= 10)
		unit *= 10;
	for (; unit > 0; unit /= 10)
		*to++ = '0' + n / unit % 10;
	return to;
}

// Text by words: the compiler would keep a string in memory.
#define LETTERS(a, b, c, d, e, f, g, h) \
	((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 | \
	 (uint64_t)(f) << 40 | (uint64_t)(g) << 48 | (uint64_t)(h) << 56)

CODE static char *append(char *to, uint64_t letters)
{
	for (; letters != 0; letters >>= 8) {
		*to++ = letters;
		NO_LIBRARY_CALL;
	}
	*to = 0;
	return to;
}

// Writes text to /proc/PID/uid_map, or gid_map.
CODE static long write_map(long pid, char kind, const char *text, char *buffer)
{
	char *to = append(buffer, LETTERS('/', 'p', 'r', 'o', 'c', '/', 0, 0));
	append(append_number(to, pid), LETTERS('/', kind, 'i', 'd', '_', 'm', 'a', 'p'));
	long fd = SYS(SYS_openat, AT_FDCWD, buffer, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return fd;
	uint64_t length = 0;
	while (text[length])
		length++;
	long n = SYS(SYS_write, fd, text, length);
	SYS(SYS_close, fd, 0, 0);
	return n < 0 ? n : 0;
}

CODE static long open_own_namespace(uint64_t name, char *buffer)
{
	char *to = append(buffer, LETTERS('/', 'p', 'r', 'o', 'c', '/', 's', 'e'));
	append(append(to, LETTERS('l', 'f', '/', 'n', 's', '/', 0, 0)), name);
	return SYS(SYS_openat, AT_FDCWD, buffer, O_RDONLY | O_CLOEXEC);
}

// Runs in the child of make_user_namespace. The exit status is an errno.
CODE __attribute__((noreturn)) static void hold_namespaces(long parent, long joined, int ready, char *buffer)
{
	char byte;
	long error = SYS(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0);
	if (error == 0 && SYS(SYS_getppid, 0, 0, 0) != parent)
		error = -ECANCELED; // it has already exited
	if (error < 0)
		end(-error);
	if ((int)joined >= 0)
		error = SYS(SYS_setns, joined, CLONE_NEWUSER, 0);
	else if (SYS(SYS_read, ready, &byte, 1) != 1)
		error = -ECANCELED;
	if (error == 0)
		error = SYS(SYS_setresgid, 0, 0, 0);
	if (error == 0)
		error = SYS(SYS_setresuid, 0, 0, 0);
	if (error == 0)
		error = SYS(SYS_unshare, CLONE_NEWNS, 0, 0);
	if (error == 0)
		error = open_own_namespace(LETTERS('u', 's', 'e', 'r', 0, 0, 0, 0), buffer);
	if (error >= 0)
		error = open_own_namespace(LETTERS('m', 'n', 't', 0, 0, 0, 0, 0), buffer);
	end(error < 0 ? -error : 0);
}

// OP_USERNS. The child shares our descriptors, so those that it opens are ours.
CODE static long make_user_namespace(long joined, const char *uid_map, const char *gid_map, char *buffer)
{
	int ready[2];
	long error = SYS(SYS_pipe2, ready, O_CLOEXEC, 0);
	if (error < 0)
		return error;
	long self = SYS(SYS_getpid, 0, 0, 0);
	uint64_t new = (int)joined >= 0 ? 0 : CLONE_NEWUSER;
	long pid = SYS(SYS_clone, CLONE_FILES | SIGCHLD | new, 0, 0);
	if (pid == 0)
		hold_namespaces(self, joined, ready[0], buffer);
	if (pid < 0)
		return pid;
	if (new) {
		error = write_map(pid, 'u', uid_map, buffer);
		if (error == 0)
			error = write_map(pid, 'g', gid_map, buffer);
		if (error < 0) // so that it does not wait forever
			SYS(SYS_kill, pid, SIGKILL, 0);
		else
			SYS(SYS_write, ready[1], buffer, 1);
	}
	int status = 0;
	long waited;
	do
		waited = sys(SYS_wait4, pid, (long)&status, 0, 0, 0, 0);
	while (waited == -EINTR);
	SYS(SYS_close, ready[0], 0, 0);
	SYS(SYS_close, ready[1], 0, 0);
	if (error < 0)
		return error;
	if (waited < 0)
		return waited;
	if (status & 0x7f)
		return -ECANCELED; // a signal
	return -(status >> 8 & 0xff);
}
