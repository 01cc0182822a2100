// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

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
	"syscall"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Program is the program in an ELF file of its own, in memory, that nobody can change. Its methods may be called
// concurrently.
type Program struct {
	name  string
	file  *os.File
	mount *os.File // of its file system; closing it takes a grace period of RCU
}

// New makes a Program, which is called name in errors, and owner:name in /proc. The error is errdefs.ErrNotImplemented
// on another processor, and if the caller may not mount.
func New(owner, name string) (*Program, error) {
	code, entry := code()
	if len(code) == 0 {
		return nil, fmt.Errorf("%s: not for this processor: %w", name, errdefs.ErrNotImplemented)
	}
	p := &Program{name: name}
	if err := p.write(owner+":"+name, image(code, entry)); err != nil {
		_ = p.Close() // nothing runs it
		return nil, fmt.Errorf("%s: make its file: %w", name, Unsupported(err))
	}
	return p, nil
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
func (p *Program) Close() error { return errors.Join(p.file.Close(), p.mount.Close()) }

// Open opens the file of the program, for [Request.ExecInit]. It is not the caller's descriptor, with which a
// container that gets it by pidfd_getfd(2) could have a lease.
func (p *Program) Open() (*os.File, error) { return os.Open(pathOf(p.file)) }

// pathOf returns the path of an open file of this process, also in a child, whose descriptors may be others.
func pathOf(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

// write makes the executable file, in a file system that has no other name and is read-only once the file is written. A
// container reaches the file as /proc/PID/exe (CVE-2019-5736), and its root may own it, but can change nothing of it,
// nor have a lease, since the caller has the file open (fcntl(2)).
func (p *Program) write(name string, content []byte) error {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context) //nolint:errcheck // the file system is made, or not wanted
	if err := unix.FsconfigCreate(context); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return os.NewSyscallError("fsmount", err)
	}
	p.mount = os.NewFile(uintptr(mount), "mount")
	if err := writeFile(mount, name, content); err != nil {
		return err
	}
	fd, err := unix.Openat(mount, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	p.file = os.NewFile(uintptr(fd), p.name)
	if err := unix.FsconfigSetFlag(context, "ro"); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	return os.NewSyscallError("fsconfig", unix.FsconfigReconfigure(context))
}

// writeFile lets nothing fork meanwhile: a child that has the file open for writing keeps it from being executed.
func writeFile(dir int, name string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err = file.Write(content); err == nil {
		err = file.Chmod(0o555) // whatever the umask is
	}
	return errors.Join(err, file.Close())
}

// code returns the program, and the offset at which it begins to run. It is empty on other processors.
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
