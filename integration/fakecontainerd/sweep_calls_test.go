// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package fakecontainerd_test

import "regexp"

// sweepErrors are those of a machine that lacks something, or of a signal.
var sweepErrors = []string{"ENOMEM", "EMFILE", "ENFILE", "ENOSPC", "EIO", "EINTR", "EAGAIN"}

// sweepCalls are made to fail, in the shim and in the processes that it starts.
//
// Left out is what Go's runtime and the C library call for themselves, where a failure ends the program by design:
// memory (brk, mmap, mprotect, munmap, madvise), threads and locks (futex, set_robust_list, set_tid_address, rseq,
// sched_*), signals (rt_sig*, sigaltstack, tgkill), the poller (epoll_create1, epoll_pwait, eventfd2), clocks and the end
// (exit, exit_group). Left out are also those that cannot fail in these ways (getpid and the like), and close: the kernel
// closes the descriptor whatever it returns, which strace does not.
//
// clone and write stay, though the runtime calls them too: the first for threads, the second to wake its poller.
// harness.GoRuntimeDied tells its end from ours.
var sweepCalls = []string{
	// Files
	"openat", "openat2", "read", "pread64", "write", "pwrite64", "writev", "lseek", "newfstatat", "fstat", "statx",
	"readlinkat", "faccessat2", "getdents64", "mkdirat", "unlinkat", "rmdir", "renameat", "renameat2", "symlinkat", "linkat",
	"mknodat", "fchmod", "fchmodat", "fchown", "fchownat", "lchown", "ftruncate", "flock", "statfs", "fstatfs", "chdir", "fchdir",
	"splice", "sendfile", "copy_file_range", "inotify_init1", "inotify_add_watch",
	// Descriptors
	"fcntl", "dup", "dup2", "dup3", "pipe2", "ioctl", "memfd_create", "close_range", "poll", "ppoll", "epoll_ctl",
	// Sockets
	"socket", "socketpair", "connect", "bind", "listen", "accept4", "getsockopt", "setsockopt", "getsockname", "getpeername",
	"shutdown", "sendmsg", "recvmsg", "sendto", "recvfrom",
	// Processes
	"clone", "clone3", "vfork", "execve", "execveat", "wait4", "waitid", "kill", "pidfd_open", "pidfd_send_signal", "prctl",
	"prlimit64", "setpgid", "setsid", "setgroups", "setresgid", "setresuid", "capset", "capget", "keyctl", "seccomp",
	"setns", "unshare", "sethostname", "getrandom", "umask",
	// Mounts
	"mount", "umount2", "move_mount", "open_tree", "mount_setattr", "fsopen", "fsconfig", "fsmount", "fspick", "pivot_root", "chroot",
}

// forkPipe is the read by which package syscall hears why a child could not run its program. No kernel lets that fail.
// If it does, the package takes the child for dead, and waits for its end for ever.
var forkPipe = regexp.MustCompile(`read\(\d+<pipe:\S+, \S+, 8\) |read resumed>\S+ 8\) `)

// againForNothing is EAGAIN of a call for which Go's poller waits then. It is told by epoll when the descriptor becomes
// ready, and the kernel says EAGAIN only of one that is not. If it is ready all the time, nothing is told.
var againForNothing = regexp.MustCompile(
	`(read|write|pwrite64|accept4|connect|sendmsg|recvmsg|sendto|recvfrom|splice)(\(| resumed>).* = -1 EAGAIN `,
)

// waitsForEver reports whether a failed call is one after which Go waits for ever by design.
func waitsForEver(line string) bool {
	return forkPipe.MatchString(line) || againForNothing.MatchString(line)
}
