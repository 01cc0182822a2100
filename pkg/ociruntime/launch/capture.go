// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include <stdlib.h>
#include "capture.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/osthread"
)

// Capture is the seccomp filter that load loads into the calling thread. It is not loaded: the kernel asks us before
// (seccomp_unotify(2)), and is told that it was. That way a filter is exactly what a library makes of a profile, also
// where the library does not tell what it makes.
//
// load runs on a thread of its own, which ends with it. Where the kernel does not let us, which needs CAP_SYS_ADMIN and
// no other listener, it is errdefs.ErrNotImplemented.
func Capture(load func() error) (*Filter, error) {
	type listener struct {
		fd  int
		err error
	}
	ready, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("capture seccomp filter: %w", os.NewSyscallError("eventfd", err))
	}
	defer func() { _ = unix.Close(ready) }() // the thread is gone, or does not use it
	listening, loaded := make(chan listener, 1), make(chan error, 1)
	go func() { // ends with load
		loaded <- osthread.Run(func() error {
			fd, err := listen()
			listening <- listener{fd, err}
			if err != nil {
				return err
			}
			if err := await(ready); err != nil {
				return err
			}
			return load()
		})
	}()
	l := <-listening
	if l.err != nil {
		return nil, fmt.Errorf("capture seccomp filter: %w: %w", l.err, errdefs.ErrNotImplemented)
	}
	defer func() { _ = unix.Close(l.fd) }() // the thread is gone
	var c C.struct_capture
	errno := unix.Errno(C.capture_filter(C.int(l.fd), C.int(ready), &c))
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
	program := make([]unix.SockFilter, c.length)
	copy(program, unsafe.Slice((*unix.SockFilter)(c.program), c.length))
	return &Filter{Flags: uint(c.flags), Program: program}, nil
}

// await returns when the other side of the eventfd can answer without the Go runtime. What loads a filter may keep its
// processor meanwhile (unix.RawSyscall), so that the runtime could neither stop the world nor run the other side.
func await(ready int) error {
	var count [8]byte
	for {
		_, err := unix.Read(ready, count[:])
		if err != unix.EINTR {
			return os.NewSyscallError("read", err)
		}
	}
}

// listen makes the kernel ask before the calling thread loads a seccomp filter by either of the two calls. libseccomp
// tries with no filter which flags the kernel knows; that is let through.
func listen() (int, error) {
	const (
		call  = 0  // offsets in struct seccomp_data
		first = 16 // of the first argument
		third = 32
		allow = unix.SECCOMP_RET_ALLOW
		ask   = unix.SECCOMP_RET_USER_NOTIF
	)
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{
		load(call),
		equal(unix.SYS_PRCTL, 0, 2),
		load(first),
		equal(unix.PR_SET_SECCOMP, 3, 7),
		equal(unix.SYS_SECCOMP, 0, 6),
		load(first),
		equal(unix.SECCOMP_SET_MODE_FILTER, 0, 4),
		load(third),
		equal(0, 0, 3),
		load(third + 4), // the upper half
		equal(0, 0, 1),
		answer(allow),
		answer(ask),
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}
