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
// or somebody has put it there meanwhile.
CODE static long make_entry(long directory, const char *name, bool file)
{
	long error;
	if (file) {
		error = sys(SYS_openat, directory, (long)name, O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644, 0, 0);
		if (error >= 0)
			SYS(SYS_close, error, 0, 0);
	} else {
		error = SYS(SYS_mkdirat, directory, name, 0755);
	}
	if (error < 0 && error != -EEXIST)
		return error;
	struct open_how how = {.flags = O_PATH | O_CLOEXEC | (file ? 0 : O_DIRECTORY), .resolve = RESOLVE_NO_SYMLINKS};
	const uint64_t arg[6] = {directory, (uint64_t)name, (uint64_t)&how, sizeof how};
	return call(SYS_openat2, arg);
}

// OP_MAKE. The descriptor is the lowest that is free. buffer has PATH_ROOM bytes.
CODE static long make(long root, const char *path, long like, char *buffer)
{
	struct stat st;
	st.st_mode = S_IFDIR;
	long error = (int)like >= 0 ? SYS(SYS_fstat, like, &st, 0) : 0;
	if (error < 0)
		return error;
	const char slash[] = {'/', 0};
	long fd = open_below(root, slash, O_DIRECTORY);
	for (uint64_t at = 0; fd >= 0 && path[at] == '/' && path[at + 1] != 0;) {
		const uint64_t name = at + 1;
		do {
			if (at >= PATH_MAX)
				return -ENAMETOOLONG;
			buffer[at] = path[at];
			at++;
		} while (path[at] != 0 && path[at] != '/');
		buffer[at] = 0;
		bool file = !S_ISDIR(st.st_mode) && path[at] == 0;
		long next = open_below(root, buffer, file ? 0 : O_DIRECTORY);
		if (next == -ENOENT)
			next = make_entry(fd, buffer + name, file);
		if (next < 0)
			return next;
		error = SYS(SYS_dup3, next, fd, O_CLOEXEC);
		if (error < 0)
			return error;
		SYS(SYS_close, next, 0, 0);
	}
	return fd;
}
