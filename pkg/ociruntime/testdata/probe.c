// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Prints all that the kernel shows of a process except process ids, times and memory. differential_test.go compares it.

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <termios.h>
#include <unistd.h>

static void show_link(const char *dir, const char *name)
{
	char path[512], target[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	ssize_t n = readlink(path, target, sizeof target - 1);
	target[n < 0 ? 0 : n] = 0;
	if (!strncmp(target, "pipe:", 5))
		target[5] = 0; // another one each time
	printf("%s -> %s\n", path, target);
}

static int differs(const char *line)
{
	static const char *const names[] = {"Pid:", "Tgid:", "PPid:", "Ngid:", "NS", "Vm", "Rss", "Hugetlb", "SigQ:", "voluntary", "nonvoluntary", 0};
	for (int i = 0; names[i]; i++)
		if (!strncmp(line, names[i], strlen(names[i])))
			return 1;
	return 0;
}

static void show_file(const char *path, int skip)
{
	char line[8192];
	FILE *f = fopen(path, "r");
	if (!f) {
		printf("%s: %m\n", path);
		return;
	}
	while (fgets(line, sizeof line, f))
		if (!skip || !differs(line))
			printf("%s: %s%s", path, line, strchr(line, '\n') ? "" : "\n");
	fclose(f);
}

static void show_fd(int fd)
{
	struct stat st;
	char name[16];
	if (fstat(fd, &st) < 0)
		return;
	snprintf(name, sizeof name, "%d", fd);
	show_link("/proc/self/fd", name);
	printf("fd %d: owner %d:%d mode %o flags %o close-on-exec %d tty %d\n", fd, st.st_uid, st.st_gid, st.st_mode,
	       fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), isatty(fd));
	struct winsize w;
	struct termios t;
	if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &w) == 0 && tcgetattr(fd, &t) == 0)
		printf("fd %d: %dx%d modes %o %o %o %o foreground %d session %d\n", fd, w.ws_col, w.ws_row, t.c_iflag, t.c_oflag,
		       t.c_cflag, t.c_lflag, tcgetpgrp(fd) == getpid(), tcgetsid(fd) == getpid());
}

static void walk(const char *dir, int depth)
{
	struct dirent **names;
	int n = scandir(dir, &names, 0, alphasort);
	for (int i = 0; i < n; i++) {
		char path[4096], target[4096];
		struct stat st;
		if (!strcmp(names[i]->d_name, ".") || !strcmp(names[i]->d_name, ".."))
			continue;
		snprintf(path, sizeof path, "%s/%s", strcmp(dir, "/") ? dir : "", names[i]->d_name);
		if (lstat(path, &st) < 0)
			continue;
		ssize_t length = readlink(path, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = 0;
		printf("file %s mode %o owner %d:%d device %lx %s\n", path, st.st_mode, st.st_uid, st.st_gid, (long)st.st_rdev, target);
		if (S_ISDIR(st.st_mode) && depth > 0 && strcmp(path, "/proc") && strncmp(path, "/sys", 4))
			walk(path, depth - 1);
	}
}

static void show_network(void)
{
	struct ifreq r = {.ifr_name = "lo"};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &r) == 0)
		printf("lo flags %x\n", (unsigned short)r.ifr_flags);
	close(fd);
}

#define TRY(call) do { errno = 0; long r = (call); printf("%s: %s %d\n", #call, r < 0 ? "error" : "ok", errno); } while (0)

int main(int argc, char **argv, char **envp)
{
	char text[8192];
	if (argc > 1 && !strcmp(argv[1], "leave keyring")) {
		syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
		close(open("/left", O_WRONLY | O_CREAT, 0600));
		for (;;)
			pause();
	}
	setvbuf(stdout, 0, _IOFBF, 1 << 20);
	for (int i = 0; i < argc; i++)
		printf("argv[%d]=%s\n", i, argv[i]);
	for (char **e = envp; *e; e++)
		printf("env %s\n", *e);
	printf("cwd %s\n", getcwd(text, sizeof text) ? text : strerror(errno));
	show_link("/proc/self", "exe");
	show_link("/proc/self", "root");
	show_file("/proc/self/status", 1);
	static const char *const files[] = {"limits", "cgroup", "mountinfo", "oom_score_adj", "uid_map", "gid_map", "setgroups",
		"coredump_filter", "loginuid", "personality", "timerslack_ns", "autogroup", "attr/current", "attr/exec", "attr/keycreate", "timens_offsets", "comm", "cpuset", "syscall_user_dispatch", 0};
	for (int i = 0; files[i]; i++) {
		snprintf(text, sizeof text, "/proc/self/%s", files[i]);
		if (strcmp(files[i], "autogroup"))
			show_file(text, 0);
	}
	static const char *const spaces[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts", 0};
	for (int i = 0; spaces[i]; i++)
		show_link("/proc/self/ns", spaces[i]);
	for (int fd = 0; fd < 256; fd++)
		show_fd(fd);
	struct utsname names;
	uname(&names);
	printf("host %s domain %s\n", names.nodename, names.domainname);
	show_network();
	if (getenv("WALK"))
		walk("/", 5);
	static const char *const sysctls[] = {"net/ipv4/ip_forward", "net/ipv4/ping_group_range", "kernel/shm_rmid_forced", "kernel/msgmax", "fs/mqueue/msg_max", 0};
	for (int i = 0; sysctls[i]; i++) {
		snprintf(text, sizeof text, "/proc/sys/%s", sysctls[i]);
		show_file(text, 0);
	}
	printf("leader of session %d group %d, tty %d\n", getsid(0) == getpid(), getpgrp() == getpid(), open("/dev/tty", O_RDWR));
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	sched_getaffinity(0, sizeof cpus, &cpus);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &cpus))
			printf("cpu %d\n", i);
	unsigned attr[16] = {0};
	syscall(SYS_sched_getattr, 0, attr, sizeof attr, 0);
	for (int i = 0; i < 14; i++)
		printf("sched_attr[%d]=%x\n", i, attr[i]);
	printf("nice %d ioprio %lx umask %o\n", getpriority(PRIO_PROCESS, 0), syscall(SYS_ioprio_get, 1, 0), umask(0));
	long n = syscall(SYS_keyctl, KEYCTL_DESCRIBE, KEY_SPEC_SESSION_KEYRING, text, sizeof text);
	printf("session keyring %s\n", n < 0 ? strerror(errno) : text);
	printf("dumpable %d keepcaps %d securebits %x nnp %d pdeathsig %d slack %d thp %d subreaper %d personality %x\n", prctl(PR_GET_DUMPABLE),
	       prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
	       prctl(PR_GET_PDEATHSIG, &n) ? -1 : (int)n, prctl(PR_GET_TIMERSLACK), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0),
	       prctl(PR_GET_CHILD_SUBREAPER, &n) ? -1 : (int)n, personality(0xffffffff));
	for (int s = 1; s < 65; s++) {
		struct { void *handler; long rest[3]; } a;
		if (syscall(SYS_rt_sigaction, s, 0, &a, 8) == 0 && a.handler)
			printf("signal %d action %p\n", s, a.handler);
	}
	TRY(open("/forbidden", O_RDONLY));
	TRY(ptrace(PTRACE_TRACEME, 0, 0, 0));
	TRY(unshare(CLONE_NEWUTS));
	TRY(chroot("/tmp"));
	TRY(mount("none", "/tmp", "tmpfs", 0, 0));
	TRY(syscall(SYS_bpf, 0, 0, 0));
	TRY(syscall(SYS_clone3, 0, 0));
	TRY(syscall(460));
	TRY(syscall(1000));
	TRY(syscall(SYS_add_key, "user", "x", "y", 1, KEY_SPEC_THREAD_KEYRING));
	TRY(syscall(SYS_kcmp, getpid(), getpid(), 0, 1, 1));
	TRY(open("/proc/sysrq-trigger", O_WRONLY));
	TRY(open("/file", O_WRONLY | O_CREAT, 0600));
	TRY(setuid(0));
	return 7;
}
