// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// A part of program.c: the home directory of a user, as libcontainer finds it (github.com/moby/sys/user,
// ParsePasswdFilter).

// The largest passwd file that is read: half a million users.
#define PASSWD_MAX_SIZE (32 << 20)

CODE static bool blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// The number at s, as strconv.Atoi reads it with errors ignored: 0 if it is not a number, and if it is too large a
// number that no user has.
CODE static uint64_t number(const char *s, const char *end)
{
	bool minus = s < end && *s == '-';
	if (s < end && (*s == '-' || *s == '+'))
		s++;
	uint64_t n = 0;
	for (; s < end; s++) {
		if (*s < '0' || *s > '9')
			return 0;
		if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *s - '0', &n))
			return UINT64_MAX;
	}
	return minus ? -n : n;
}

// The home directory in a line of passwd(5), or NULL if the line is not uid's. A missing field is 0 or empty.
CODE static char *home_in(char *line, char *end, uint64_t uid)
{
	while (line < end && blank(*line))
		line++;
	while (end > line && blank(end[-1]))
		end--;
	if (line == end)
		return 0;
	uint64_t id = 0;
	char *home = end;
	int field = 0;
	for (char *start = line, *s = line;; s++) {
		if (s < end && *s != ':')
			continue;
		if (field == 2)
			id = number(start, s);
		if (field == 5) {
			home = start;
			*s = 0; // s is at most the newline, or the byte behind the last line
			break;
		}
		if (s == end)
			break;
		field++;
		start = s + 1;
	}
	if (home == end)
		*end = 0;
	return id == uid ? home : 0;
}

CODE static void set_home(char *home, const char *directory)
{
	home[0] = 'H', home[1] = 'O', home[2] = 'M', home[3] = 'E', home[4] = '=';
	char *to = home + 5;
	while ((*to++ = *directory++))
		NO_LIBRARY_CALL;
}

// Opens a file of the container if it is a regular one: reading from anything else could block. Links of procfs are
// never followed: they may lead to what this process has open. Nor are files of procfs and sysfs read, and those without
// a size, as pseudo file systems have: that can have effects which the container's user may not have, such as those of
// /proc/kmsg and trace_pipe on what they show.
CODE static long open_regular(const char *file)
{
	struct open_how how = {
		.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
		.resolve = RESOLVE_NO_MAGICLINKS,
	};
	const uint64_t arg[6] = {AT_FDCWD, (uint64_t)file, (uint64_t)&how, sizeof how};
	long fd = call(SYS_openat2, arg);
	if (fd < 0)
		return fd;
	struct stat st;
	struct statfs fs;
	long error = SYS(SYS_fstat, fd, &st, 0);
	if (error == 0)
		error = SYS(SYS_fstatfs, fd, &fs, 0);
	if (error == 0 && (!S_ISREG(st.st_mode) || st.st_size == 0))
		error = -EINVAL;
	if (error == 0 && (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC))
		error = -EINVAL;
	if (error < 0)
		SYS(SYS_close, fd, 0, 0);
	return error < 0 ? error : fd;
}

// Stores "HOME=" and the directory in uid's first line of the file in home; "HOME=/" if there is none, or if the file
// cannot be read to its end, is too large, or has a line that is too long.
CODE static void find_home(uint64_t uid, const char *file, char *line, char *home)
{
	const char root[] = {'/', 0};
	set_home(home, root);
	long fd = open_regular(file);
	if (fd < 0)
		return;
	bool found = false;
	uint64_t total = 0;
	for (uint64_t have = 0;;) {
		long n = -E2BIG;
		if (have < LINE_MAX_SIZE && total < PASSWD_MAX_SIZE)
			n = SYS(SYS_read, fd, line + have, LINE_MAX_SIZE - have);
		if (n == -EINTR)
			continue;
		total += n;
		if (n < 0)
			set_home(home, root);
		if (n < 0 || (n == 0 && have == 0))
			break;
		if (n == 0)
			line[have++] = '\n'; // the last line has none; LINE_ROOM has room for it
		have += n;
		char *start = line;
		for (char *s = line; s < line + have; s++) {
			if (*s != '\n')
				continue;
			char *directory = found ? 0 : home_in(start, s, uid);
			if (directory) {
				found = true;
				set_home(home, directory);
			}
			start = s + 1;
		}
		have = line + have - start;
		for (uint64_t i = 0; i < have; i++) {
			line[i] = start[i];
			NO_LIBRARY_CALL;
		}
	}
	SYS(SYS_close, fd, 0, 0);
}
