// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// The first stage of a container's init enters the container's cgroup by itself, before libcontainer's part of it begins
// (runc libcontainer/nsenter/nsexec.c). What is moved by its parent waits for a grace period of RCU, some milliseconds,
// which holds up every fork of the machine as well (kernel/cgroup/cgroup.c, cgroup_procs_write_start).
//
// pkg/engine/birth.go says over a socket where to go, and waits for the answer, an errno. After an error this process is
// where it was or on its way, and is moved as libcontainer does it.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
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
	memset(buffer, 0xff, CPUS_MAX / 8);
	syscall(SYS_sched_setaffinity, 0, CPUS_MAX / 8, buffer);
	return 0;
}

// move_to moves this process by the files tasks of hierarchies of version 1, each of which ends with a zero byte. A process
// that moves itself by that file waits for nothing.
static int move_to(const char *files, const char *end)
{
	for (const char *file = files; file < end; file += strlen(file) + 1) {
		int fd = open(file, O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			return errno;
		int error = write(fd, "0", 1) < 0 ? errno : 0;
		close(fd);
		if (error)
			return error;
	}
	return 0;
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

	ssize_t n;
	do
		n = recv(sock, buffer, sizeof buffer, 0);
	while (n < 0 && errno == EINTR);
	if (n > 0 && buffer[n - 1] == 0) {
		int32_t error = move_to(buffer + strlen(buffer) + 1, buffer + n);
		if (!error && *buffer)
			error = be_born_in(buffer);
		send(sock, &error, sizeof error, MSG_NOSIGNAL); // who does not listen any more has given up
	}
	close(sock);
}

CONSTRUCTOR(101, join_cgroup) // before those without a number, of which libcontainer's is one
