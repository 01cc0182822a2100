// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Runs the part of the program that reads the passwd file of a container, for FuzzPasswd: with files that are in memory,
// and buffers of exactly the size that they have there, so that the address sanitizer sees each byte too many.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CODE
#define NO_LIBRARY_CALL
#define LINE_MAX_SIZE 65536
#define LINE_ROOM (LINE_MAX_SIZE + 64)

static char *content;
static size_t size, at, part;

static long in_memory(long call, long a, long b, long c)
{
	(void)a;
	switch (call) {
	case SYS_openat2:
		at = 0;
		return 3;
	case SYS_fstat:
		((struct stat *)b)->st_mode = S_IFREG, ((struct stat *)b)->st_size = 1;
		return 0;
	case SYS_fstatfs:
		((struct statfs *)b)->f_type = EXT4_SUPER_MAGIC;
		return 0;
	case SYS_read:
		if ((size_t)c > part)
			c = (long)part;
		if ((size_t)c > size - at)
			c = (long)(size - at);
		memcpy((void *)b, content + at, (size_t)c);
		at += (size_t)c;
		return c;
	}
	return 0;
}

#define SYS(call, a, b, c) in_memory(call, (long)(a), (long)(b), (long)(c))
static long call(long number, const uint64_t *arg) { return SYS(number, arg[0], arg[1], arg[2]); }
#include "../passwd.h"

static void transfer(ssize_t (*one)(int, void *, size_t), int fd, void *data, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = one(fd, (char *)data + done, n - done);
		if (got <= 0)
			exit(0); // who asks has gone
		done += (size_t)got;
	}
}

static ssize_t send_out(int fd, void *data, size_t n) { return write(fd, data, n); }

int main(void)
{
	for (;;) {
		uint64_t question[3]; // user, size of a read, size of the file
		transfer(read, 0, question, sizeof question);
		part = question[1], size = question[2];
		content = malloc(size + 1);
		transfer(read, 0, content, size);
		char *line = malloc(LINE_ROOM), *home = malloc(LINE_ROOM);
		find_home(question[0], "/etc/passwd", line, home);
		uint64_t answer = strlen(home);
		transfer(send_out, 1, &answer, sizeof answer);
		transfer(send_out, 1, home, answer);
		free(content), free(line), free(home);
	}
}
