// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package native runs lists of system calls in a process without the Go runtime: it has one thread, can fork, and has
// nothing of the shim in its memory.
//
// The program (program.c) is seven kilobytes of C without a library. It lies in a section of this binary, and [New]
// makes an ELF file of it in sealed memory. [Program.Start] runs that. [Run.Execute] sends it a [Request], which says
// what system calls to make in which order. It becomes the program of a container, or sleeps.
//
// A fork of the request makes a child of the shim (CLONE_PARENT). The process that forked ends, and Execute waits for
// it. At [Request.Wait] a process stops until the shim knows all processes that were forked before. So a process of
// which the shim never heard does nothing after such a step.
//
// # Goroutines and locks
//
// There is no lock. Execute has no goroutines except for those of its context's end, which do nothing once it returns.
// It waits in Go's poller, without a thread. The reaper is suspended while the first process starts; the others are
// registered once their parent has reported them.
//
// # Promises
//
//   - If Execute fails, none of its processes is left, neither running nor to be reaped. The exceptions are one that
//     does not exit within some seconds of SIGKILL, and one whose parent was killed before reporting it, which ends by
//     itself: the reaper collects both.
//   - Execute ends when its context does, even if the process is frozen.
package native

/*
#include "arch.h"
#include "program.h"
*/
import "C"

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"sandbox.internal/shim/pkg/reaper"
)

// What callers have to know about the program to predict its system calls.
const (
	Socket      = C.FD_SOCKET             // its descriptor of the socket to the shim; files of the caller follow it
	MessageSize = C.sizeof_struct_message // what it writes there before it reads a byte at [Request.Wait]
	AuditArch   = C.NATIVE_AUDIT_ARCH     // AUDIT_ARCH_… of the processor, see seccomp(2)
)

// Program is the program in a file of its own. Its methods may be called concurrently.
type Program struct {
	name string
	file *os.File
}

// New makes a Program, which is called name in errors and, after memoryName, in /proc. The error is
// errdefs.ErrNotImplemented if the program is not written for the processor, or the kernel has no executable memory
// files or is older than Linux 5.10.
func New(name string) (*Program, error) {
	code, entry := code()
	if len(code) == 0 {
		return nil, fmt.Errorf("%s: not for this processor: %w", name, errdefs.ErrNotImplemented)
	}
	// The newest system call that is needed.
	pidfd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%s: pidfd_open: %w", name, Unsupported(err))
	}
	_ = unix.Close(pidfd) // it was only tried
	file, err := memoryFile(memoryName+name, image(code, entry))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Program{name, file}, nil
}

// Unsupported adds errdefs.ErrNotImplemented to the error of a system call that the kernel refuses, unless it lacks
// something at the moment.
func Unsupported(err error) error {
	for _, lack := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR} {
		if errors.Is(err, lack) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", err, errdefs.ErrNotImplemented)
}

// Close closes the file. Processes that run it continue.
func (p *Program) Close() error { return p.file.Close() }

// Start starts the program with these standard streams, and with more as its descriptors from [Socket] + 1 on. nil
// means none. The program does nothing until Execute, which must be called.
func (p *Program) Start(reaper *reaper.Reaper, stdio [3]*os.File, more ...*os.File) (*Run, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	_ = unix.SetNonblock(pair[0], true) // a valid one; so Go's poller watches it
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close() //nolint:errcheck // the program has its own
	files := append([]*os.File{stdio[0], stdio[1], stdio[2], theirs}, more...)
	file, err := p.above(files)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer file.Close() //nolint:errcheck // the program has its own
	defer reaper.Suspend()()
	first, err := os.StartProcess(pathOf(file), []string{p.name}, &os.ProcAttr{Env: []string{}, Files: files})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.name, err), ours.Close())
	}
	reaper.Register(first.Pid)
	return &Run{name: p.name, reaper: reaper, socket: ours, current: first}, nil
}

// above returns the program's file with a descriptor that a child still has when it runs the file by that number.
// Before that, Go puts the child's descriptors in place, using temporary ones above all of them (syscall/exec_linux.go,
// forkAndExecInChild1; golang.org/issue/61751).
func (p *Program) above(files []*os.File) (*os.File, error) {
	highest := len(files)
	for _, f := range files {
		if f != nil {
			highest = max(highest, int(f.Fd()))
		}
	}
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, highest+len(files)+2)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), p.name), nil
}

// pathOf returns the path of an open file in this process, and in a child before execve.
func pathOf(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// memoryName begins the names of memory files, which the tools that watch a node show: it says whose they are.
const memoryName = "containerd-shim-sandbox-v1:"

// memoryFile makes an executable file that is closed on exec and that nobody can write to: a container may reach it as
// /proc/PID/exe (CVE-2019-5736). Its owner can still revoke the permission to execute it, by an ACL.
func memoryFile(name string, content []byte) (*os.File, error) {
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	// Linux 6.3 has MFD_EXEC, and F_SEAL_EXEC with it. Before, the file's owner can change its mode.
	flags, more := unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC, unix.F_SEAL_EXEC
	fd, err := unix.MemfdCreate(name, flags)
	if errors.Is(err, unix.EINVAL) {
		more = 0
		fd, err = unix.MemfdCreate(name, flags&^unix.MFD_EXEC)
	}
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("a memory file that executes is forbidden by vm.memfd_noexec=2: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", Unsupported(err))
	}
	file := os.NewFile(uintptr(fd), name)
	err = seal(file, content, seals|more)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func seal(file *os.File, content []byte, seals int) error {
	if _, err := file.Write(content); err != nil {
		return err
	}
	if err := file.Chmod(0o555); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal: %w", Unsupported(err))
	}
	return nil
}

// code returns the program and the offset at which it begins to run. It is empty on other processors.
func code() (code []byte, entry uint64) {
	c := C.native_code()
	return C.GoBytes(c.start, C.int(c.size)), uint64(c.entry)
}

// image returns an ELF file with one segment, which holds the code.
func image(code []byte, entry uint64) []byte {
	type headers struct {
		File     elf.Header64
		Segments [2]elf.Prog64
	}
	const start = uint64(unsafe.Sizeof(headers{})) // of the code
	total := start + uint64(len(code))
	h := headers{
		File: elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_DYN), Machine: C.NATIVE_ELF_MACHINE, Version: uint32(elf.EV_CURRENT), Entry: start + entry,
			Ehsize: uint16(unsafe.Sizeof(elf.Header64{})), Phoff: uint64(unsafe.Sizeof(elf.Header64{})),
			Phentsize: uint16(unsafe.Sizeof(elf.Prog64{})), Phnum: uint16(len(headers{}.Segments)),
		},
		Segments: [...]elf.Prog64{
			{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: total, Memsz: total, Align: 4096},
			{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
		},
	}
	b, _ := binary.Append(nil, binary.LittleEndian, h) // the type has a fixed size
	return append(b, code...)
}
