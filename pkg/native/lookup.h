// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// A part of program.c: which file is the program of the process. groups is GROUPS_ROOM of memory to use.

// 0 or -EACCES, as Go decides where faccessat2(2) is missing (syscall.Faccessat).
CODE static long mode_allows(const struct stat *st, uint32_t *groups)
{
	long uid = SYS(SYS_geteuid, 0, 0, 0);
	struct __user_cap_header_struct header;
	header.version = _LINUX_CAPABILITY_VERSION_3;
	header.pid = 0;
	struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
	bool overrides = SYS(SYS_capget, &header, caps, 0) == 0 && (caps[0].effective >> CAP_DAC_OVERRIDE & 1);
	mode_t bits = S_IXOTH;
	if (uid == 0 || overrides) {
		bits = S_IXUSR | S_IXGRP | S_IXOTH;
	} else if (uid == st->st_uid) {
		bits = S_IXUSR;
	} else {
		long n = SYS(SYS_getgroups, NGROUPS_MAX, groups, 0);
		bool member = SYS(SYS_getegid, 0, 0, 0) == st->st_gid;
		for (long i = 0; i < n && !member; i++)
			member = groups[i] == st->st_gid;
		if (member)
			bits = S_IXGRP;
	}
	return st->st_mode & bits ? 0 : -EACCES;
}

// Decides as os/exec.LookPath does (os/exec/lp_unix.go, findExecutable).
CODE static long executable(const char *path, uint32_t *detail, uint32_t *groups)
{
	struct stat st;
	*detail = LOOKUP_STAT;
	long error = sys(SYS_newfstatat, AT_FDCWD, (long)path, (long)&st, 0, 0, 0);
	if (error < 0)
		return error;
	*detail = LOOKUP_ACCESS;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	error = sys(SYS_faccessat2, AT_FDCWD, (long)path, X_OK, AT_EACCESS, 0, 0);
	if (error == -ENOSYS || error == -EPERM) // a seccomp filter
		return mode_allows(&st, groups);
	return error;
}

// The index of the path in the list.
CODE static long lookup(char **list, bool search, long step, uint32_t *groups)
{
	for (long i = 0; list[i]; i++) {
		uint32_t detail;
		long error = executable(list[i], &detail, groups);
		if (error == 0 && search && list[i][0] != '/')
			fail(step, -ENOENT, LOOKUP_DOT);
		if (error == 0)
			return i;
		if (!search)
			fail(step, error, detail);
	}
	fail(step, -ENOENT, LOOKUP_NONE);
}
