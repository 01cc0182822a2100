// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

// Package memprog makes a program of a piece of this binary: of C code that needs no library and no data, and lies in
// a section of its own. The program is a few kilobytes in a memory file, which nobody can change.
//
// It has no state.
package memprog

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// sealed is what keeps a container from changing the program, which it can reach as /proc/PID/exe (CVE-2019-5736).
// F_SEAL_EXEC is added where it is known, since Linux 6.3; before, the mode can be changed by its owner.
const sealed = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// beyond is a number above those of all descriptors that a child is started with, which Go puts in their places before
// it runs the program by the number of the file (golang.org/issue/61751).
const beyond = 64

// New makes a file of code, which runs at any address and begins at entry. Where the kernel has no executable memory
// files, or this is no code for the machine, it is errdefs.ErrNotImplemented. The file is closed on exec; its path, in
// this process and in a child before it runs a program, is /proc/self/fd/N.
func New(name string, code []byte, entry uintptr) (*os.File, error) {
	if len(code) == 0 {
		return nil, fmt.Errorf("%s: not for this processor: %w", name, errdefs.ErrNotImplemented)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: memfd_create: %w: %w", name, err, errdefs.ErrNotImplemented)
	}
	memory := os.NewFile(uintptr(fd), name)
	defer memory.Close() //nolint:errcheck // the other descriptor counts
	if _, err := memory.Write(image(code, entry)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	const executable = 0o555
	if err := memory.Chmod(executable); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed|unix.F_SEAL_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: seal: %w: %w", name, err, errdefs.ErrNotImplemented)
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, beyond)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, os.NewSyscallError("fcntl", err))
	}
	return os.NewFile(uintptr(high), name), nil
}

// image is an ELF file with one segment, which holds the code.
func image(code []byte, entry uintptr) []byte {
	const (
		page    = 4096
		headers = 2
	)
	before := binary.Size(elf.Header64{}) + headers*binary.Size(elf.Prog64{})
	// The code keeps its alignment.
	size := (before + 63) &^ 63
	file := elf.Header64{
		Ident:     [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:      uint16(elf.ET_DYN),
		Machine:   uint16(elf.EM_X86_64),
		Version:   uint32(elf.EV_CURRENT),
		Entry:     uint64(size) + uint64(entry),
		Phoff:     uint64(binary.Size(elf.Header64{})),
		Ehsize:    uint16(binary.Size(elf.Header64{})),
		Phentsize: uint16(binary.Size(elf.Prog64{})),
		Phnum:     headers,
	}
	total := uint64(size + len(code))
	segments := [headers]elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: total, Memsz: total, Align: page},
		{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	}
	var b bytes.Buffer
	for _, part := range []any{file, segments} {
		_ = binary.Write(&b, binary.LittleEndian, part) // a buffer takes all, and the types have a fixed size
	}
	b.Write(make([]byte, size-b.Len()))
	b.Write(code)
	return b.Bytes()
}
