// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The first stage of a container's init enters the container's cgroup by itself, before libcontainer's part of it begins
// (runc libcontainer/nsenter/nsexec.c). What is moved by its parent waits for a grace period of RCU, some milliseconds,
// which holds up every fork of the machine as well (kernel/cgroup/cgroup.c, cgroup_procs_write_start).
//
// pkg/ociruntime/init_cgroup.go says over a socket where to go, and waits for the answer, an errno. After an error this process is
// where it was or on its way, and is moved as libcontainer does it. On version 1 it also makes cgroups, while its parent does what goes
// before the answer.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "constructor.h"
#include "join.h"

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

static char buffer[REQUEST_MAX];

// be_born_in goes on as a new process in the cgroup dir of version 2, a sibling of this one, which ends with status 0.
// libcontainer waits for the one that it started, and asks no more of it.
//
// The new one says that it lives. Newer kernels (6.18 does) kill it at birth where cgroup.kill was not written as often in dir as in
// the cgroup of this process (kernel/cgroup/cgroup.c, kill_seq); then this one goes on.
static int be_born_in(const char *dir)
{
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
	} how = { .flags = CLONE_PARENT | CLONE_INTO_CGROUP };
	int life[2];
	if (pipe2(life, O_CLOEXEC) < 0)
		return errno;
	int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	how.cgroup = fd;
	long pid = fd < 0 ? -1 : syscall(SYS_clone3, &how, sizeof how);
	int error = pid < 0 ? errno : 0;
	if (pid == 0 && write(life[1], "", 1) < 0)
		_exit(1);
	close(fd);
	close(life[1]);
	if (pid > 0) {
		char byte;
		ssize_t n;
		do
			n = read(life[0], &byte, 1);
		while (n < 0 && errno == EINTR);
		if (n > 0)
			_exit(0);
		error = ECANCELED;
	}
	close(life[0]);
	if (error)
		return error;
	// libcontainer does this to the process that it started (process_linux.go, tryResetCPUAffinity).
	static unsigned char all[CPUS_MAX / 8];
	memset(all, 0xff, sizeof all);
	syscall(SYS_sched_setaffinity, 0, sizeof all, all);
	return 0;
}

// enter moves this process to a cgroup of version 1, by its file tasks. A process that moves itself by that waits for nothing.
static int enter(const char *dir)
{
	char file[PATH_MAX];
	if ((size_t)snprintf(file, sizeof file, "%s/tasks", dir) >= sizeof file)
		return ENAMETOOLONG;
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	int error = write(fd, "0", 1) < 0 ? errno : 0;
	close(fd);
	return error;
}

// make makes cgroups and enters them, and returns how many. What it cannot do is for the parent, who can say why.
static int make(const char *dirs, const char *end)
{
	int made = 0;
	for (const char *dir = dirs; dir < end; dir += strlen(dir) + 1, made++)
		if ((mkdir(dir, 0755) < 0 && errno != EEXIST) || enter(dir) != 0)
			break;
	return made;
}

// unmake takes that back, where the parent was killed meanwhile. Who cleans up after it may have come before make.
static void unmake(const char *dirs, const char *end)
{
	char above[PATH_MAX];
	for (const char *dir = dirs; dir < end; dir += strlen(dir) + 1) {
		if ((size_t)snprintf(above, sizeof above, "%s/..", dir) < sizeof above)
			enter(above);
		rmdir(dir);
	}
}

// enter_all enters cgroups, but for the first, in which this process is.
static int enter_all(const char *dirs, const char *end, int first)
{
	int error = 0;
	for (const char *dir = dirs; dir < end && !error; dir += strlen(dir) + 1)
		if (first-- <= 0)
			error = enter(dir);
	return error;
}

// receive returns how many bytes of a request are in the buffer; 0 without one.
static ssize_t receive(int sock)
{
	ssize_t n;
	do
		n = recv(sock, buffer, sizeof buffer, 0);
	while (n < 0 && errno == EINTR);
	return n > 1 && buffer[n - 1] == 0 ? n : 0;
}

// forget takes a variable from the environment that the Go runtime is about to read.
static void forget(char **env, const char *variable)
{
	while (*env != variable)
		env++;
	do
		env[0] = env[1];
	while (*env++);
}

static void join_cgroup(int argc, char **argv, char **env)
{
	static const char name[] = "_LIBCONTAINER_PIDFD_SOCK=";
	const char *variable = NULL;
	for (char **e = env; *e; e++)
		if (strncmp(*e, name, sizeof name - 1) == 0)
			variable = *e;
	if (argc != 2 || strcmp(argv[1], "init") != 0 || !variable)
		return;
	int sock = atoi(variable + sizeof name - 1);
	forget(env, variable); // libcontainer would send a pidfd there

	int made = 0;
	ssize_t n = receive(sock);
	if (n > 0 && *buffer == MAKE) {
		const char *end = buffer + n;
		made = make(buffer + 1, end);
		n = receive(sock);
		if (n == 0)
			unmake(buffer + 1, end);
	}
	if (n > 0 && *buffer == ENTER) {
		const char *unified = buffer + 1, *dirs = unified + strlen(unified) + 1, *end = buffer + n;
		int32_t error = enter_all(dirs, end, made);
		if (!error && *unified)
			error = be_born_in(unified);
		if (send(sock, &error, sizeof error, MSG_NOSIGNAL) < 0 && (errno == EPIPE || errno == ECONNRESET))
			unmake(dirs, end);
	}
	close(sock);
}

CONSTRUCTOR(101, join_cgroup) // before those without a number, of which libcontainer's is one
