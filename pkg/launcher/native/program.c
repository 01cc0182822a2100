// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The program: see program.go. Its code is the section "native" of the caller's binary, of which program.go makes a file.
// So nothing in that section may refer to anything outside of it: no library, no static data, no constants that the
// compiler would keep in memory. TestProgram_StandsAlone checks that.

#pragma GCC optimize("Os", "no-jump-tables", "no-tree-loop-distribute-patterns", "no-stack-protector", "no-exceptions")
#if defined(__x86_64__) || defined(__aarch64__)
#pragma GCC target("general-regs-only") // vector constants would lie in .rodata
#endif

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define CODE __attribute__((section("native")))
// In a loop it keeps the compiler from calling memmove or strcpy.
#define NO_LIBRARY_CALL __asm__ volatile("" ::: "memory")

#include "arch.h"

#ifdef HAVE_PROGRAM

ENTRY(native_entry, native_main);
extern char __start_native[], __stop_native[], native_entry[]; // the linker defines the first two

struct code native_code(void)
{
	return (struct code){__start_native, __stop_native - __start_native, native_entry - __start_native};
}

// What is mapped behind the request: a path, for which the stack may not be able to grow under the process's limits.
#define PATH_ROOM (PATH_MAX + 8)

#define SYS(call, a, b, c) sys(call, (long)(a), (long)(b), (long)(c), 0, 0, 0)

CODE __attribute__((noreturn)) static void end(int status)
{
	SYS(SYS_exit_group, status, 0, 0);
	__builtin_trap(); // a seccomp filter forbade it
}

// Sends a message to the caller. An empty socket buffer takes a whole one, if there is memory for it. An error cannot be
// reported: a function that would wait for an answer ends the program, so that the caller does not wait either.
CODE static bool tell(uint32_t kind, uint32_t value, uint32_t step, uint32_t detail)
{
	struct message m = {kind, value, step, detail};
	long n;
	do
		n = SYS(SYS_write, FD_SOCKET, &m, sizeof m);
	while (n == -EINTR);
	return n == sizeof m;
}

CODE __attribute__((noreturn)) static void fail(long step, long error, uint32_t detail)
{
	tell(MESSAGE_FAILED, -error, step, detail);
	end(255);
}

// Reads size bytes, or ends if the caller is gone.
CODE static void receive(char *to, uint64_t size)
{
	while (size > 0) {
		long n = SYS(SYS_read, FD_SOCKET, to, size);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			end(255);
		to += n;
		size -= n;
	}
}

// Receives a request, whose sizes and offsets are those that the caller has computed.
CODE static struct header *receive_request(void)
{
	uint64_t size;
	receive((char *)&size, sizeof size);
	char *base = (char *)sys(SYS_mmap, 0, size + PATH_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if ((unsigned long)base > -4096UL)
		fail(0, (long)base, 0);
	struct header *h = (struct header *)base;
	h->size = size;
	receive(base + sizeof size, size - sizeof size);
	uint64_t *r = (uint64_t *)(base + sizeof *h + h->steps * sizeof(struct step));
	char *data = (char *)(r + h->relocations);
	for (uint64_t i = 0; i < h->relocations; i++)
		*(uint64_t *)(base + r[i]) += (uint64_t)data;
	return h;
}

CODE static bool tolerated(const struct step *s, long error)
{
	if (s->tolerated == TOLERATE_ALL)
		return true;
	for (int shift = 0; shift < 64; shift += 16)
		if (((s->tolerated >> shift) & 0xffff) == (uint64_t)-error)
			return true;
	return false;
}

// Makes a system call, and repeats it if it was interrupted: openat2(2) of a path with ".." by any rename or mount of the
// machine, so with a bound of tries.
CODE static long call(long number, const uint64_t *arg)
{
	long result;
	int tries = 0;
	do
		result = sys(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
	while ((result == -EINTR && number != SYS_close) || // which has closed it all the same
	       (result == -EAGAIN && number == SYS_openat2 && ++tries < 10000));
	return result;
}

// Returns 0 only in the child; in this process, an error.
CODE static long fork_sibling(uint64_t cgroup, uint64_t namespaces, uint32_t step)
{
	struct clone_args a;
	for (char *byte = (char *)&a; byte < (char *)(&a + 1); byte++) { // an initializer would call memset on arm64
		*byte = 0;
		NO_LIBRARY_CALL;
	}
	a.flags = CLONE_PARENT | CLONE_INTO_CGROUP | namespaces;
	a.cgroup = cgroup - 1;
	long pid = cgroup ? SYS(SYS_clone3, &a, sizeof a, 0) : SYS(SYS_clone, CLONE_PARENT | SIGCHLD | namespaces, 0, 0);
	if (pid == 0 && cgroup != 0 && !tell(MESSAGE_IN_CGROUP, 0, step, 0))
		end(255);
	if (pid <= 0)
		return pid;
	if (!tell(MESSAGE_PID, pid, step, 0))
		SYS(SYS_kill, pid, SIGKILL, 0);
	end(0);
}

CODE static long check_inode(const uint64_t *arg)
{
	struct statfs fs;
	struct stat st;
	long error = SYS(SYS_fstat, arg[0], &st, 0);
	if (error < 0)
		return error;
	if ((st.st_mode & S_IFMT) != arg[1] || st.st_rdev != arg[2])
		return -ENODEV;
	if (arg[3] == 0)
		return 0;
	error = SYS(SYS_fstatfs, arg[0], &fs, 0);
	if (error < 0)
		return error;
	return (uint64_t)fs.f_type == arg[3] && st.st_ino == arg[4] ? 0 : -ENODEV;
}

CODE static long check_not_proc(uint64_t fd)
{
	struct statfs fs;
	long error = SYS(SYS_fstatfs, fd, &fs, 0);
	if (error < 0)
		return error;
	return fs.f_type == PROC_SUPER_MAGIC ? -EXDEV : 0;
}

// The kernel puts "(unreachable)" in front of a directory that is not below the root. See getcwd(2), CVE-2024-21626.
CODE __attribute__((noinline)) static long check_cwd(void)
{
	char path[4096];
	path[0] = 0;
	long n = SYS(SYS_getcwd, path, sizeof path, 0);
	if (n < 0)
		return n;
	return path[0] == '/' ? 0 : -ENOENT;
}

// Appends text to a path that ends at at, unless the result is longer than the kernel takes: PATH_MAX.
CODE static uint64_t extend(char *path, uint64_t at, const char *text)
{
	for (; at < PATH_MAX && (path[at] = *text) != 0; at++, text++)
		NO_LIBRARY_CALL;
	return at;
}

// Joins a directory and a name as path/filepath.Join does, if both are clean. Returns the length.
CODE static uint64_t join(char *path, const char *directory, const char *name)
{
	const char slash[] = {'/', 0};
	if (directory[0] == '.' && directory[1] == 0)
		return extend(path, 0, name);
	uint64_t at = extend(path, 0, directory);
	if (path[at - 1] != '/')
		at = extend(path, at, slash);
	return extend(path, at, name);
}

// Returns the index of the first directory of the list in which name is an executable file, as os/exec.LookPath decides
// (os/exec/lp_unix.go, findExecutable), and stores the path in *found. buffer has PATH_ROOM bytes.
CODE static long lookup(const char *list, char *name, char **found, char *buffer, long step)
{
	*found = list ? buffer : name;
	for (long i = 0; !list || *list; i++) {
		bool fits = !list || join(buffer, list, name) < PATH_MAX;
		while (list && *list++)
			NO_LIBRARY_CALL;
		if (!fits)
			continue;
		struct stat st;
		uint32_t detail = LOOKUP_STAT;
		long error = sys(SYS_newfstatat, AT_FDCWD, (long)*found, (long)&st, 0, 0, 0);
		if (error == 0) {
			detail = LOOKUP_ACCESS;
			error = S_ISDIR(st.st_mode) ? -EISDIR : sys(SYS_faccessat2, AT_FDCWD, (long)*found, X_OK, AT_EACCESS, 0, 0);
			if (error == -ENOSYS || error == -EPERM) // a seccomp filter; the real user is the effective one
				error = SYS(SYS_faccessat, AT_FDCWD, *found, X_OK);
		}
		if (error == 0 && list && (*found)[0] != '/')
			fail(step, -ENOENT, LOOKUP_DOT);
		if (error == 0)
			return i;
		if (!list)
			fail(step, error, detail);
	}
	fail(step, -ENOENT, LOOKUP_NONE);
}

#include "init.h"
#include "path.h"

CODE __attribute__((noinline, noreturn)) static void run(const char *path, const struct step *s, long step, long found)
{
	const char none = 0;
	long error;
	if (s->op == OP_INIT) {
		((const char **)s->arg[0])[1] = path;
		error = sys(SYS_execveat, s->arg[2], (long)&none, s->arg[0], s->arg[1], AT_EMPTY_PATH, 0);
	} else {
		error = SYS(SYS_execve, path, s->arg[0], s->arg[1]);
	}
	tell(MESSAGE_NOT_RUN, -error, step, found);
	char text[8192];
	for (;;) { // until the caller has closed its end
		long n = SYS(SYS_read, FD_SOCKET, text, sizeof text);
		if (n <= 0)
			end(255);
		SYS(SYS_write, 2, text, n);
	}
}

CODE __attribute__((noreturn)) static void sleep_forever(struct header *h)
{
	SYS(SYS_close_range, 0, ~0U, 0); // the caller waits for that
	SYS(SYS_munmap, h, h->size + PATH_ROOM, 0);
	for (;;)
		sys(SYS_ppoll, 0, 0, 0, 0, 0, 0);
}

CODE static void await_shim(uint32_t step)
{
	char leave;
	if (!tell(MESSAGE_WAITING, 0, step, 0))
		end(255);
	receive(&leave, 1);
}

// The status is that of a process ended by the signal, as in shells.
CODE __attribute__((noreturn, used)) static void end_by_signal(int sig) { end(128 + sig); }

CODE static void handle_signals(void)
{
	const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
	// The kernel's structure. The handler does not return, so the restorer, without which x86 delivers no signal, is
	// never used.
	struct {
		void *handler;
		unsigned long flags;
		void *restorer;
		unsigned long mask;
	} action = {.flags = 0x04000000 /* SA_RESTORER */}, before;
	ADDRESS(action.handler, end_by_signal);
	action.restorer = action.handler;
	for (int i = 0; i < (int)(sizeof signals / sizeof *signals); i++) {
		before.handler = 0;
		sys(SYS_rt_sigaction, signals[i], 0, (long)&before, sizeof before.mask, 0, 0);
		if (before.handler != (void *)1 /* SIG_IGN */)
			sys(SYS_rt_sigaction, signals[i], (long)&action, 0, sizeof action.mask, 0, 0);
	}
}

CODE __attribute__((noreturn, used)) void native_main(long *stack)
{
	if (stack[0] > 2) // it has arguments
		run_init(stack);
	struct header *h = receive_request();
	struct step *steps = (struct step *)(h + 1);
	char *buffer = (char *)h + h->size, *path = 0;
	long found = 0;
	for (uint64_t i = 0; i < h->steps; i++) {
		struct step *s = steps + i;
		uint64_t earlier = s->condition < 0 ? -(uint64_t)s->condition : (uint64_t)s->condition;
		if (earlier && steps[earlier - 1].outcome != (s->condition > 0 ? STEP_FAILED : STEP_SUCCEEDED))
			continue;
		long result = 0;
		if (s->op == OP_CALL) {
			result = call(s->call, s->arg);
		} else if (s->op == OP_FORK) {
			result = fork_sibling(s->arg[0], s->arg[1], i);
		} else if (s->op == OP_WAIT) {
			await_shim(i);
		} else if (s->op == OP_HOLD) {
			await_shim(i);
			if (!tell(MESSAGE_RESUMED, 0, i, 0))
				end(255);
		} else if (s->op == OP_SIGNALS) {
			handle_signals();
		} else if (s->op == OP_INODE) {
			result = check_inode(s->arg);
		} else if (s->op == OP_NOT_PROC) {
			result = check_not_proc(s->arg[0]);
		} else if (s->op == OP_MAKE) {
			result = make(s->arg[0], (char *)s->arg[1], s->arg[2], buffer);
		} else if (s->op == OP_CHECK_CWD) {
			result = check_cwd();
		} else if (s->op == OP_LOOKUP) {
			found = lookup((char *)s->arg[0], (char *)s->arg[1], &path, buffer, i);
		} else if ((s->op == OP_EXEC || s->op == OP_INIT) && path) {
			run(path, s, i, found);
		} else if (s->op == OP_SLEEP) {
			sleep_forever(h);
		} else {
			fail(i, -EINVAL, 0);
		}
		if (result < 0 && !tolerated(s, result))
			fail(i, result, 0);
		if (s->fd && result >= 0 && (uint64_t)result != s->fd)
			fail(i, -EBADF, 0);
		s->outcome = result < 0 ? STEP_FAILED : STEP_SUCCEEDED;
	}
	end(255); // a request that ends with neither OP_EXEC, OP_INIT nor OP_SLEEP
}

#else

struct code native_code(void) { return (struct code){0}; }

#endif
