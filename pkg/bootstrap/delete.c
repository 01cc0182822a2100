// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// containerd 2.4 runs `delete` after each container and pod, even one that the shim has removed. The shim has then
// left the answer (pkg/cleanup, Index.LeaveAnswer), which is printed without the Go runtime
// (docs/decisions/0016-delete-of-what-is-deleted.md).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "detach.h"

// answer_in finds the answer: after the path of a socket or "", and a zero byte, which a state does not have. A file
// that fills the room may be longer, and counts as having none.
static const char *answer_in(const char *text, size_t size, size_t room)
{
	const char *end = size < room ? memchr(text, 0, size) : NULL;
	return end ? end + 1 : NULL;
}

// print_answer prints the answer and exits. It returns if there is none, or if the socket is still there.
static void print_answer(const char *bundle)
{
	char path[PATH_MAX], text[512];
	snprintf(path, sizeof path, "%s/shim.json", bundle);
	int file = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (file < 0)
		return;
	ssize_t size = read(file, text, sizeof text);
	close(file);
	const char *answer = size < 0 ? NULL : answer_in(text, (size_t)size, sizeof text);
	if (answer && (!*text || (faccessat(AT_FDCWD, text, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT))) {
		size_t length = (size_t)(text + size - answer);
		_exit(write(STDOUT_FILENO, answer, length) == (ssize_t)length ? 0 : 1);
	}
}

void answer_delete(int argc, char **argv)
{
	if (argc < 4 || strcmp(argv[argc - 1], "delete") != 0) // no argument may follow the action
		return;
	for (int i = 1; i < argc - 2; i++)
		if (strcmp(argv[i], "-bundle") == 0)
			print_answer(argv[i + 1]);
}
