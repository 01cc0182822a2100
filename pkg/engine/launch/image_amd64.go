// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"unsafe"
)

// image is the launcher program: an ELF file with one segment, which holds the code of program_amd64.c and runs at any
// address. The linker names the ends of that code.
func image() []byte {
	start := unsafe.Pointer(&C.__start_launcher)
	code := C.GoBytes(start, C.int(uintptr(unsafe.Pointer(&C.__stop_launcher))-uintptr(start)))
	entry := uintptr(unsafe.Pointer(&C.launcher_entry)) - uintptr(start)

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
