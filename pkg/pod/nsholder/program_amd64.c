// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The holder program: see doc.go. Its code is the section "holder" of the shim's binary, which pkg/memprog makes a
// program of. So nothing here may refer to anything outside of that section: no library, no static data, no constants
// that the compiler would keep in memory. TestTheProgramStandsAlone looks.

#pragma GCC optimize("Os", "no-jump-tables", "no-tree-loop-distribute-patterns", "no-stack-protector", "no-exceptions")
#pragma GCC target("general-regs-only") // vector constants would lie in .rodata

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "program.h"

#define HOLDER __attribute__((section("holder")))

__asm__(".pushsection holder, \"ax\", @progbits\n"
	".globl holder_entry\n"
	"holder_entry:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call holder_main\n"
	"	ud2\n"
	".popsection\n");

HOLDER static inline long sys(long call, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

#define SYS(call, a, b, c) sys(call, (long)(a), (long)(b), (long)(c), 0, 0)

HOLDER __attribute__((noreturn)) static void end(int status)
{
	for (;;)
		SYS(SYS_exit_group, status, 0, 0);
}

HOLDER static void tell(uint32_t kind, uint32_t value, uint32_t step)
{
	struct message m;
	m.kind = kind;
	m.value = value;
	m.step = step;
	SYS(SYS_write, FD_SOCKET, &m, sizeof m); // nobody is left to be told of an error
}

// Ends the program if result is an error.
HOLDER static void must(uint32_t step, long result)
{
	if (result >= 0)
		return;
	tell(MESSAGE_FAILED, -result, step);
	end(255);
}

// Reads a message of this size, or ends: the shim is gone.
HOLDER static void receive(void *to, long size)
{
	long n;
	do
		n = SYS(SYS_read, FD_SOCKET, to, size);
	while (n == -EINTR);
	if (n != size)
		end(255);
}

// Makes an empty, read-only file system the root in a mount namespace of its own: what is called /proc/1/root in the
// pod must not lead to the host.
HOLDER static long empty_root(void)
{
	const char none[] = {0}, root[] = {'/', 0}, here[] = {'.', 0}, proc[] = {'/', 'p', 'r', 'o', 'c', 0};
	const char tmpfs[] = {'t', 'm', 'p', 'f', 's', 0}, size[] = {'s', 'i', 'z', 'e', '=', '4', 'k', 0};
	long error = SYS(SYS_unshare, CLONE_NEWNS, 0, 0);
	if (error < 0)
		return error;
	// Nothing goes to the host, and what is unmounted there is unmounted here, where it cannot be left behind.
	error = sys(SYS_mount, (long)none, (long)root, 0, MS_REC | MS_SLAVE, 0);
	if (error < 0)
		return error;
	// /proc is a directory that is there.
	error = sys(SYS_mount, (long)tmpfs, (long)proc, (long)tmpfs, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, (long)size);
	if (error < 0)
		return error;
	error = SYS(SYS_chdir, proc, 0, 0);
	if (error < 0)
		return error;
	error = SYS(SYS_pivot_root, here, here, 0);
	if (error == 0) {
		error = SYS(SYS_umount2, here, MNT_DETACH, 0);
	} else if (error == -EINVAL) { // the root is the initial ramdisk, which cannot be moved
		error = sys(SYS_mount, (long)here, (long)root, 0, MS_MOVE, 0);
		if (error == 0)
			error = SYS(SYS_chroot, here, 0, 0);
	}
	if (error < 0)
		return error;
	return SYS(SYS_chdir, root, 0, 0);
}

HOLDER static void make_user(void)
{
	char leave;
	must(STEP_MAKE_USER, SYS(SYS_unshare, CLONE_NEWUSER, 0, 0));
	tell(MESSAGE_MAP, 0, 0);
	receive(&leave, 1);
}

// Goes on in a child of the shim that is the first process of a PID namespace.
HOLDER static void fork_first(void)
{
	must(STEP_FORK, SYS(SYS_unshare, CLONE_NEWPID, 0, 0));
	long pid = SYS(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0);
	must(STEP_FORK, pid);
	if (pid > 0) {
		tell(MESSAGE_PID, pid, 0);
		end(0);
	}
}

// Gives up all that a process without a user of its own in the pod can do.
HOLDER static void become_nobody(const struct request *r)
{
	struct __user_cap_header_struct header;
	struct __user_cap_data_struct data[2];
	long error = SYS(SYS_setgroups, 0, 0, 0);
	if (error != -EPERM) // the user namespace denies setgroups(2)
		must(STEP_GROUPS, error);
	must(STEP_GID, SYS(SYS_setresgid, r->gid, r->gid, r->gid));
	must(STEP_UID, SYS(SYS_setresuid, r->uid, r->uid, r->uid));
	header.version = _LINUX_CAPABILITY_VERSION_3;
	header.pid = 0;
	for (int i = 0; i < 2; i++) {
		data[i].effective = data[i].permitted = data[i].inheritable = 0;
		__asm__ volatile("" ::: "memory"); // no memset
	}
	must(STEP_CAPABILITIES, SYS(SYS_capset, &header, data, 0));
	must(STEP_PRIVILEGES, sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

// Ignores SIGCHLD, so that the kernel reaps what the pod leaves behind, and blocks all that can be blocked.
HOLDER static void ignore_signals(void)
{
	struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} action;
	uint64_t all = ~0UL;
	action.handler = SIG_IGN;
	action.flags = 0;
	action.restorer = 0;
	action.mask = 0;
	sys(SYS_rt_sigaction, SIGCHLD, (long)&action, 0, 8, 0);
	sys(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8, 0);
}

HOLDER __attribute__((noreturn, used)) void holder_main(void)
{
	const char name[] = {'s', 'a', 'n', 'd', 'b', 'o', 'x', '-', 'i', 'n', 'i', 't', 0};
	struct request r;
	char leave;
	receive(&r, sizeof r);
	if (r.name_size > sizeof r.name)
		must(STEP_REQUEST, -EINVAL);
	ignore_signals();
	SYS(SYS_setsid, 0, 0, 0); // fails where it leads a group, and then nobody signals that
	SYS(SYS_prctl, PR_SET_NAME, name, 0);

	must(STEP_ROOT, empty_root());
	if (r.join_net) // before the user namespace: it need not be the owner
		must(STEP_JOIN_NET, SYS(SYS_setns, FD_NET, CLONE_NEWNET, 0));
	if (r.join_user)
		must(STEP_JOIN_USER, SYS(SYS_setns, FD_USER, CLONE_NEWUSER, 0));
	if (r.make_user)
		make_user();
	must(STEP_MAKE, SYS(SYS_unshare, r.make, 0, 0));
	if (r.name_size)
		must(STEP_NAME, SYS(SYS_sethostname, r.name, r.name_size, 0));
	if (r.make_pid)
		fork_first();
	become_nobody(&r);
	// After the change of the user, which resets both.
	must(STEP_DUMPABLE, sys(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0));
	must(STEP_DEATH, sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
	tell(MESSAGE_READY, 0, 0);
	receive(&leave, 1); // does not come when the shim died before
	SYS(SYS_close_range, 0, ~0U, 0); // which the shim waits for
	for (;;)
		sys(SYS_ppoll, 0, 0, 0, 0, 0);
}
