// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The first stage of a container's init enters the container's cgroup by itself, before libcontainer's part of it runs
// (runc libcontainer/nsenter/nsexec.c). A process that its parent moves waits for an RCU grace period, several
// milliseconds, which also blocks every fork of the machine (kernel/cgroup/cgroup.c, cgroup_procs_write_start).
//
// pkg/ociruntime/init_cgroup.go sends a request (join.h) over a socket, later a byte when the cgroup exists, and waits
// for an errno. After an error this process may be in some of the directories, and is moved as libcontainer does it.

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
#include <sys/syscall.h>
#include <unistd.h>

#include "constructor.h"
#include "join.h"

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

// clone_into continues as a new process in the cgroup dir of version 2: a sibling of this one, which ends with status
// 0. libcontainer waits for the process that it started, and asks no more of it.
//
// The sibling reports that it lives. Linux 6.18 kills it at once if cgroup.kill was written more often in dir than in
// the cgroup of this process (kernel/cgroup/cgroup.c, kill_seq); then this process continues.
static int clone_into(const char *dir)
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

// enter moves this process into a cgroup of version 1. A process that moves itself by the file tasks waits for nothing.
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

static ssize_t receive(int sock, char *buffer, size_t size)
{
	ssize_t n;
	do
		n = recv(sock, buffer, size, 0);
	while (n < 0 && errno == EINTR);
	return n;
}

// join enters the directories of a request and returns an errno; -1 if the parent is gone. It enters those that exist
// at once, while the parent makes the others.
static int32_t join(int sock, char *request, const char *end)
{
	const char *late[V1_MAX];
	int count = 0, error = 0;
	for (const char *dir = request + strlen(request) + 1; dir < end && count < V1_MAX; dir += strlen(dir) + 1)
		if (enter(dir) != 0)
			late[count++] = dir;
	char ready;
	if (receive(sock, &ready, sizeof ready) <= 0)
		return -1;
	for (int i = 0; i < count && !error; i++)
		error = enter(late[i]);
	return error || !*request ? error : clone_into(request);
}

// unset removes a variable from the environment that the Go runtime is about to read.
static void unset(char **env, const char *variable)
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
	unset(env, variable); // libcontainer would send a pidfd there

	static char request[REQUEST_MAX];
	ssize_t n = receive(sock, request, sizeof request);
	if (n > 0 && request[n - 1] == 0) {
		int32_t error = join(sock, request, request + n);
		if (error >= 0)
			send(sock, &error, sizeof error, MSG_NOSIGNAL);
	}
	close(sock);
}

CONSTRUCTOR(101, join_cgroup) // before those without a number, of which libcontainer's is one
