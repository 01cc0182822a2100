// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// containerd 2.4 runs `delete` after each container and pod, even after one that the shim itself has removed. The shim
// has then left the answer in the bundle (pkg/cleanup, Index.LeaveAnswer), which is printed without starting the Go
// runtime: detach.c calls this first (docs/decisions/0016-delete-of-what-is-deleted.md).

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "detach.h"

// answer_in finds the answer in the content of the file: after the path of a socket or "", and a zero byte, which the
// state of what is not removed does not have. A file that fills the room may be longer, and counts as having none.
static const char *answer_in(const char *text, size_t size, size_t room)
{
	const char *end = size < room ? memchr(text, 0, size) : NULL;
	return end ? end + 1 : NULL;
}

// print_answer prints the answer and exits. It returns if there is none, or the socket of a shim that should have ended
// is left.
static void print_answer(const char *bundle)
{
	char text[512];
	int dir = open(bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int file = dir < 0 ? -1 : openat(dir, "shim.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t size = file < 0 ? -1 : read(file, text, sizeof text);
	const char *answer = size < 0 ? NULL : answer_in(text, (size_t)size, sizeof text);
	if (answer && (!*text || (faccessat(AT_FDCWD, text, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT))) {
		size_t length = (size_t)(text + size - answer);
		_exit(write(STDOUT_FILENO, answer, length) == (ssize_t)length ? 0 : 1);
	}
	if (file >= 0)
		close(file);
	if (dir >= 0)
		close(dir);
}

void answer_delete(int argc, char **argv)
{
	if (argc < 4 || strcmp(argv[argc - 1], "delete") != 0) // no argument may follow the action
		return;
	for (int i = 1; i < argc - 2; i++)
		if (strcmp(argv[i], "-bundle") == 0)
			print_answer(argv[i + 1]);
}
