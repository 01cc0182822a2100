// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package seccomp gets the seccomp filter that a library makes of a profile, without loading it ([Capture]), keeps such
// filters on disk ([Cache]), and says which calls of the launcher a filter forbids.
package seccomp

/*
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// A filter that a thread tried to load.
struct capture {
	uint64_t flags;
	uint32_t length; // in instructions
	void *program;   // of malloc(3); NULL if there was none
};

// Answers the listener's thread that its filters were loaded, and keeps the last one in c, until the thread is gone.
// Writes to the eventfd ready once it no longer needs the Go runtime, which a thread that waits for an answer may hold
// up. Returns an errno, or 0.
static int capture_filter(int listener, int ready, struct capture *c)
{
	const uint64_t one = 1;
	if (write(ready, &one, sizeof one) < 0)
		return errno;
	for (;;) {
		struct pollfd p = {.fd = listener, .events = POLLIN};
		if (poll(&p, 1, -1) < 0) {
			if (errno == EINTR)
				continue;
			return errno;
		}
		if (!(p.revents & POLLIN))
			return 0; // the thread is gone
		struct seccomp_notif call;
		memset(&call, 0, sizeof call);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			return errno;
		}
		struct seccomp_notif_resp answer = {.id = call.id};
		bool seccomp = call.data.nr == SYS_seccomp;
		// The addresses are those of our own process.
		const struct sock_fprog *program = (const struct sock_fprog *)call.data.args[2];
		// libseccomp probes without a program which flags the kernel knows.
		if (call.data.args[0] != (seccomp ? SECCOMP_SET_MODE_FILTER : PR_SET_SECCOMP) || !program) {
			answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		} else {
			size_t size = program->len * sizeof *program->filter;
			c->flags = seccomp ? call.data.args[1] : 0;
			c->length = program->len;
			if (!(c->program = realloc(c->program, size)))
				return ENOMEM;
			memcpy(c->program, program->filter, size);
		}
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) < 0 && errno != ENOENT)
			return errno;
	}
}
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/launcher/native"
)

// Filter is a seccomp filter, see seccomp(2).
type Filter struct {
	Flags   uint
	Program []byte // instructions (struct sock_filter), as the kernel takes them

	BlocksStart bool // it forbids a call that a process makes between the last fork and execve
	BlocksInit  bool // it forbids one that an init of the launcher makes
}

// Capture returns the seccomp filter that load loads into the calling thread, exactly as a library makes it. The filter
// is not loaded: the kernel asks us before (seccomp_unotify(2)), and we answer that it was. load runs on a thread that
// ends with it. The error is errdefs.ErrNotImplemented without CAP_SYS_ADMIN, or with another listener.
func Capture(load func() error) (*Filter, error) {
	ready, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("capture seccomp filter: %w", os.NewSyscallError("eventfd", err))
	}
	defer func() { _ = unix.Close(ready) }() // the thread is gone, or does not use it
	listening, loaded := make(chan int, 1), make(chan error, 1)
	go func() { // ends with load
		loaded <- native.OnThread(func() error {
			listener, err := listen()
			if err != nil {
				close(listening)
				return err
			}
			listening <- listener
			if err := awaitEvent(ready); err != nil {
				return err
			}
			return load()
		})
	}()
	listener, ok := <-listening
	if !ok {
		return nil, fmt.Errorf("capture seccomp filter: %w", native.Unsupported(<-loaded))
	}
	defer func() { _ = unix.Close(listener) }() // the thread is gone
	var c C.struct_capture
	errno := unix.Errno(C.capture_filter(C.int(listener), C.int(ready), &c))
	defer C.free(c.program)
	if errno != 0 {
		return nil, fmt.Errorf("capture seccomp filter: %w", errno)
	}
	if err := <-loaded; err != nil {
		return nil, err
	}
	if c.program == nil {
		return nil, errors.New("capture seccomp filter: none was loaded")
	}
	return NewFilter(uint(c.flags), unsafe.Slice((*unix.SockFilter)(c.program), c.length)), nil
}

// awaitEvent returns when the other side can answer without the Go runtime: load may keep its processor meanwhile.
func awaitEvent(eventfd int) error {
	var count [8]byte
	for {
		_, err := unix.Read(eventfd, count[:])
		if err != unix.EINTR {
			return os.NewSyscallError("read", err)
		}
	}
}

// listen makes the kernel ask us about the calls of this thread by which a filter may be loaded.
func listen() (int, error) {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PRCTL, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}

// NewFilter returns the filter of these flags (SECCOMP_FILTER_FLAG_…) and instructions.
func NewFilter(flags uint, program []unix.SockFilter) *Filter {
	code, _ := binary.Append(nil, binary.LittleEndian, program) // its elements have a fixed size
	f := &Filter{Flags: flags, Program: code}
	raw := make([]bpf.RawInstruction, 0, len(program))
	for _, i := range program {
		raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	instructions, _ := bpf.Disassemble(raw) // what it does not know, NewVM refuses
	vm, err := bpf.NewVM(instructions)
	blocks := func(call int, args ...uint64) bool { return err != nil || !allows(vm, call, args...) }
	f.BlocksStart = blocks(unix.SYS_CLONE, unix.CLONE_PARENT|uint64(unix.SIGCHLD)) ||
		blocks(unix.SYS_WRITE, native.Socket, 0, native.MessageSize) ||
		blocks(unix.SYS_READ, native.Socket, 0, 1) ||
		blocks(unix.SYS_SETSID) || blocks(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	f.BlocksInit = f.BlocksStart || blocks(unix.SYS_CLONE, uint64(unix.SIGCHLD))
	for _, call := range []int{
		unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_EXIT_GROUP, unix.SYS_KILL, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_WAIT4,
	} {
		f.BlocksInit = f.BlocksInit || blocks(call)
	}
	for _, option := range []uint64{unix.PR_SET_NAME, unix.PR_SET_CHILD_SUBREAPER} {
		f.BlocksInit = f.BlocksInit || blocks(unix.SYS_PRCTL, option)
	}
	return f
}

// allows reports whether a filter lets the system call be made, with 0 for arguments that are addresses.
func allows(filter *bpf.VM, call int, args ...uint64) bool {
	// struct seccomp_data of seccomp(2). The virtual machine is one for packets, whose words are big-endian.
	data := binary.BigEndian.AppendUint32(nil, uint32(call))
	data = binary.BigEndian.AppendUint32(data, native.AuditArch)
	data = append(data, make([]byte, 8)...) // the instruction pointer
	for _, a := range append(args, make([]uint64, 6-len(args))...) {
		data = binary.BigEndian.AppendUint32(data, uint32(a))
		data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
	}
	result, err := filter.Run(data)
	action := uint32(result) & unix.SECCOMP_RET_ACTION_FULL
	return err == nil && (action == unix.SECCOMP_RET_ALLOW || action == unix.SECCOMP_RET_LOG)
}
