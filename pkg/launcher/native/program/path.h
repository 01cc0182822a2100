// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// A part of program.c: paths below a root file system that others may change meanwhile.

CODE static long open_below(long root, const char *path, uint64_t flags)
{
	struct open_how how = {.flags = flags | O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT};
	const uint64_t arg[6] = {root, (uint64_t)path, (uint64_t)&how, sizeof how};
	return call(SYS_openat2, arg);
}

// Opens the entry name of a directory with O_PATH, and makes it if it is not there. A link is refused: it is dangling,
// or somebody has put it there meanwhile. So are `.` and `..`, which no root bounds here: somebody has removed what is
// before them.
CODE static long make_entry(long directory, const char *name, bool file)
{
	long error;
	if (name[0] == '.' && (name[1] == 0 || (name[1] == '.' && name[2] == 0)))
		return -ENOENT;
	if (file) {
		error = sys(SYS_openat, directory, (long)name, O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644, 0, 0);
		if (error >= 0)
			SYS(SYS_close, error, 0, 0);
	} else {
		error = SYS(SYS_mkdirat, directory, name, 0755);
	}
	if (error < 0 && error != -EEXIST)
		return error;
	const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC | (file ? 0 : O_DIRECTORY);
	long fd = sys(SYS_openat, directory, (long)name, flags, 0, 0, 0);
	if (fd < 0)
		return fd;
	struct stat st;
	error = SYS(SYS_fstat, fd, &st, 0);
	if (error < 0)
		return error;
	return S_ISLNK(st.st_mode) ? -ELOOP : fd;
}

// OP_MAKE. The descriptor is the lowest that is free. buffer has LINE_ROOM bytes.
CODE static long make(long root, const char *path, long like, char *buffer)
{
	bool file = false;
	if ((int)like >= 0) {
		struct stat st;
		long error = SYS(SYS_fstat, like, &st, 0);
		if (error < 0)
			return error;
		file = !S_ISDIR(st.st_mode);
	}
	const char dot[] = {'.', 0};
	long fd = open_below(root, dot, O_DIRECTORY);
	for (uint64_t at = 0; fd >= 0;) {
		for (; path[at] == '/'; at++) {
			if (at >= LINE_MAX_SIZE)
				return -ENAMETOOLONG;
			buffer[at] = '/';
		}
		if (path[at] == 0)
			break;
		uint64_t start = at;
		for (; path[at] != 0 && path[at] != '/'; at++) {
			if (at >= LINE_MAX_SIZE)
				return -ENAMETOOLONG;
			buffer[at] = path[at];
		}
		buffer[at] = 0;
		uint64_t end = at;
		while (path[end] == '/')
			end++;
		bool is_file = file && path[end] == 0;
		long next = open_below(root, buffer, is_file ? 0 : O_DIRECTORY);
		if (next == -ENOENT)
			next = make_entry(fd, buffer + start, is_file);
		if (next < 0)
			return next;
		long error = SYS(SYS_dup3, next, fd, O_CLOEXEC);
		if (error < 0)
			return error;
		SYS(SYS_close, next, 0, 0);
	}
	return fd;
}

// The length of prefix if path is it, or is below it; else 0.
CODE static uint64_t prefix_length(const char *path, const char *prefix)
{
	uint64_t n = 0;
	for (; prefix[n] != 0; n++)
		if (path[n] != prefix[n])
			return 0;
	return path[n] == 0 || path[n] == '/' ? n : 0;
}

// OP_BELOW. buffer has LINE_ROOM bytes.
CODE static long check_below(const char *link, const char *directory, const char *except, char *buffer)
{
	long n = sys(SYS_readlinkat, AT_FDCWD, (long)link, (long)buffer, LINE_MAX_SIZE, 0, 0);
	if (n < 0)
		return n;
	buffer[n] = 0;
	uint64_t length = prefix_length(buffer, directory);
	if (n == LINE_MAX_SIZE || length == 0 || buffer[length] == 0)
		return -EXDEV;
	return prefix_length(buffer + length + 1, except) ? -EXDEV : 0;
}

// OP_MODE: four digits.
CODE static long store_mode(long fd, char *to)
{
	struct stat st;
	long error = SYS(SYS_fstat, fd, &st, 0);
	if (error < 0)
		return error;
	for (int digit = 0; digit < 4; digit++)
		to[digit] = '0' + (st.st_mode >> (9 - 3 * digit) & 7);
	to[4] = 0;
	return 0;
}

// OP_NULL.
CODE static long replace_null(long fd)
{
	for (int stream = 0; stream < 3; stream++) {
		struct stat st;
		long error = SYS(SYS_fstat, stream, &st, 0);
		if (error == 0 && is_null(&st))
			error = SYS(SYS_dup3, fd, stream, 0);
		if (error < 0)
			return error;
	}
	return 0;
}
