// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The launcher program: see doc.go. Its code is the section "launcher" of the shim's binary, which pkg/memprog makes a
// program of. So nothing here may refer to anything outside of that section: no library, no static data, no constants
// that the compiler would keep in memory. TestTheProgramStandsAlone looks.

#pragma GCC optimize("Os", "no-jump-tables", "no-tree-loop-distribute-patterns", "no-stack-protector", "no-exceptions")
#pragma GCC target("general-regs-only") // vector constants would lie in .rodata

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/limits.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "program.h"

#define LAUNCHER __attribute__((section("launcher")))

#define GROUPS_ROOM (NGROUPS_MAX * sizeof(uint32_t))

__asm__(".pushsection launcher, \"ax\", @progbits\n"
	".globl launcher_entry\n"
	"launcher_entry:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call launcher_main\n"
	"	ud2\n"
	".popsection\n");

LAUNCHER static inline long sys(long call, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define SYS(call, a, b, c) sys(call, (long)(a), (long)(b), (long)(c), 0, 0, 0)

LAUNCHER __attribute__((noreturn)) static void end(int status)
{
	SYS(SYS_exit_group, status, 0, 0);
	__builtin_trap(); // a seccomp filter did not let it
}

LAUNCHER static void tell(uint32_t kind, uint32_t value, uint32_t step, uint32_t detail)
{
	struct message m;
	m.kind = kind;
	m.value = value;
	m.step = step;
	m.detail = detail;
	// A message fits into the empty buffer of a socket whole. Nobody is left to be told of an error.
	SYS(SYS_write, FD_SOCKET, &m, sizeof m);
}

LAUNCHER __attribute__((noreturn)) static void fail(long step, long error, uint32_t detail)
{
	tell(MESSAGE_FAILED, -error, step, detail);
	end(255);
}

// Reads size bytes, or ends: the shim is gone.
LAUNCHER static void receive(char *to, uint64_t size)
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

// A request that the shim did not mean ends the program.
LAUNCHER static struct header *receive_request(void)
{
	uint64_t size;
	receive((char *)&size, sizeof size);
	if (size < sizeof(struct header) || size > (1UL << 30) || size % 8 != 0)
		end(255);
	// Further room comes behind it: the stack may not be able to grow under the limits of the process.
	char *base = (char *)sys(SYS_mmap, 0, size + 2 * LINE_ROOM + GROUPS_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if ((unsigned long)base > -4096UL)
		fail(0, (long)base, 0);
	struct header *h = (struct header *)base;
	h->size = size;
	receive(base + sizeof size, size - sizeof size);

	uint64_t room = size - sizeof *h;
	if (h->steps > room / sizeof(struct step))
		end(255);
	room -= h->steps * sizeof(struct step);
	if (h->relocations > room / 8 || base[size - 1] != 0)
		end(255);
	uint64_t *r = (uint64_t *)(base + sizeof *h + h->steps * sizeof(struct step));
	for (uint64_t i = 0; i < h->relocations; i++) {
		if (r[i] % 8 != 0 || r[i] >= size)
			end(255);
		uint64_t *word = (uint64_t *)(base + r[i]);
		if (*word >= size)
			end(255);
		*word += (uint64_t)base;
	}
	return h;
}

LAUNCHER static bool tolerated(const struct step *s, long error)
{
	if (s->tolerate == TOLERATE_ALL)
		return true;
	for (int shift = 0; shift < 64; shift += 16)
		if (((s->tolerate >> shift) & 0xffff) == (uint64_t)-error)
			return true;
	return false;
}

// The kernel's struct sigaction.
struct action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

LAUNCHER static long reset_signals(void)
{
	for (int sig = 1; sig <= 64; sig++) {
		struct action a;
		// SIGKILL and SIGSTOP cannot be changed.
		if (sys(SYS_rt_sigaction, sig, 0, (long)&a, 8, 0, 0) < 0 || a.handler == SIG_DFL)
			continue;
		// Those are left ignored that Go leaves so (runtime/sigtab_linux_generic.go), as through libcontainer.
		if (sig == SIGHUP || sig == SIGINT || (sig >= 32 && sig <= 34))
			continue;
		a.handler = SIG_DFL;
		a.flags = 0;
		a.mask = 0;
		sys(SYS_rt_sigaction, sig, (long)&a, 0, 8, 0, 0);
	}
	return 0;
}

#include "home.h"

// Only the child returns, with 0; this process does with an error.
LAUNCHER static long fork_sibling(uint64_t cgroup, uint32_t step)
{
	long pid;
	if (cgroup == 0) {
		pid = SYS(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0);
	} else {
		uint64_t args[11]; // struct clone_args, version 2
		for (int i = 0; i < 11; i++) {
			args[i] = 0;
			__asm__ volatile("" ::: "memory"); // no memset
		}
		args[0] = CLONE_PARENT | CLONE_INTO_CGROUP;
		args[10] = cgroup - 1;
		pid = SYS(SYS_clone3, args, sizeof args, 0);
	}
	if (pid == 0 && cgroup != 0)
		tell(MESSAGE_BORN, 0, step, 0);
	if (pid <= 0)
		return pid;
	tell(MESSAGE_PID, pid, step, 0);
	end(0);
}

// runc's libcontainer/console_linux.go has the numbers (checkPtmxHandle); they are those of fs/devpts/inode.c.
LAUNCHER static long check_ptmx(int fd)
{
	struct statfs fs;
	struct stat st;
	long error = SYS(SYS_fstatfs, fd, &fs, 0);
	if (error == 0)
		error = SYS(SYS_fstat, fd, &st, 0);
	if (error < 0)
		return error;
	bool ptmx = fs.f_type == 0x1cd1 && st.st_ino == 2 && S_ISCHR(st.st_mode) && st.st_rdev == (5 << 8 | 2);
	return ptmx ? 0 : -ENODEV;
}

// A stream that cannot be given away keeps its owner: its user is not mapped, or its file system is read-only.
LAUNCHER static void own_stdio(uint64_t uid, long step)
{
	for (int fd = 0; fd < 3; fd++) {
		struct stat st;
		long error = SYS(SYS_fstat, fd, &st, 0);
		if (error < 0)
			fail(step, error, fd);
		bool null = S_ISCHR(st.st_mode) && st.st_rdev == (1 << 8 | 3);
		if (st.st_uid == uid || null)
			continue;
		error = SYS(SYS_fchown, fd, uid, -1);
		if (error < 0 && error != -EPERM && error != -EROFS)
			fail(step, error, fd);
	}
}

LAUNCHER static long drop_bounding(uint64_t keep, uint64_t last)
{
	for (uint64_t c = 0; c <= last; c++) {
		if (keep >> c & 1)
			continue;
		long error = sys(SYS_prctl, PR_CAPBSET_DROP, c, 0, 0, 0, 0);
		if (error < 0 && error != -EINVAL) // EINVAL: the kernel does not know it
			return error;
	}
	return 0;
}

// The kernel puts "(unreachable)" in front of a directory that is not below the root. See getcwd(2), CVE-2024-21626.
LAUNCHER static long check_inside(void)
{
	char path[4096];
	path[0] = 0;
	long n = SYS(SYS_getcwd, path, sizeof path, 0);
	if (n < 0)
		return n;
	return path[0] == '/' ? 0 : -ENOENT;
}

#include "lookup.h"

LAUNCHER __attribute__((noreturn)) static void run(char **list, long found, const struct step *s, long step)
{
	long error = SYS(SYS_execve, list[found], s->arg[0], s->arg[1]);
	tell(MESSAGE_NOT_RUN, -error, step, found);
	char words[8192];
	for (;;) { // until the shim has closed its end
		long n = SYS(SYS_read, FD_SOCKET, words, sizeof words);
		if (n <= 0)
			end(255);
		SYS(SYS_write, 2, words, n);
	}
}

LAUNCHER __attribute__((noreturn, used)) void launcher_main(void)
{
	struct header *h = receive_request();
	struct step *steps = (struct step *)(h + 1);
	char *line = (char *)h + h->size, *home = line + LINE_ROOM;
	uint32_t *groups = (uint32_t *)(home + LINE_ROOM);
	char **list = 0;
	long found = 0;
	for (uint64_t i = 0; i < h->steps; i++) {
		struct step *s = steps + i;
		long result = 0;
		if (s->after > i)
			end(255);
		if (s->after && !steps[s->after - 1].call)
			continue;
		if (s->op == OP_CALL) {
			result = sys(s->call, s->arg[0], s->arg[1], s->arg[2], s->arg[3], s->arg[4], s->arg[5]);
		} else if (s->op == OP_SIGNALS) {
			result = reset_signals();
		} else if (s->op == OP_FORK) {
			result = fork_sibling(s->arg[0], i);
		} else if (s->op == OP_PTMX) {
			result = check_ptmx(s->arg[0]);
		} else if (s->op == OP_READY) {
			char leave;
			tell(MESSAGE_READY, 0, i, 0);
			receive(&leave, 1);
		} else if (s->op == OP_STDIO) {
			own_stdio(s->arg[0], i);
		} else if (s->op == OP_HOME) {
			find_home(s->arg[0], (char *)s->arg[1], line, home);
			*(char **)s->arg[2] = home;
		} else if (s->op == OP_BOUNDING) {
			result = drop_bounding(s->arg[0], s->arg[1]);
		} else if (s->op == OP_INSIDE) {
			result = check_inside();
		} else if (s->op == OP_LOOKUP) {
			list = (char **)s->arg[0];
			found = lookup(list, s->arg[1], i, groups);
		} else if (s->op == OP_EXEC) {
			run(list, found, s, i);
		} else {
			fail(i, -EINVAL, 0);
		}
		if (result < 0 && !tolerated(s, result))
			fail(i, result, 0);
		if (s->result && result >= 0 && (uint64_t)result != s->result)
			fail(i, -EBADF, 0);
		s->call = result < 0; // for the steps that depend on it
	}
	end(255); // a request without OP_EXEC
}
