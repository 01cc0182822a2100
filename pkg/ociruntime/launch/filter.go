// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

/*
#include "program.h"
*/
import "C"

import (
	"encoding/binary"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// FilterLast reports whether the seccomp filter forbids what the program does between the fork into the PID namespace
// and execve, so that it has to be loaded after that. Then the process is in the container for a moment without.
// Without NoNewPrivileges it would be there with all privileges too, since to load a filter takes one: that Start does
// not do.
func (c *Command) FilterLast() bool {
	if c.Filter == nil {
		return false
	}
	calls := []call{
		{unix.SYS_CLONE, [6]uint64{unix.CLONE_PARENT | uint64(unix.SIGCHLD)}},
		{unix.SYS_WRITE, [6]uint64{C.FD_SOCKET, 0, C.sizeof_struct_message}},
		{unix.SYS_READ, [6]uint64{C.FD_SOCKET, 0, 1}},
		{unix.SYS_SETSID, [6]uint64{}},
	}
	if c.Terminal != nil {
		calls = append(calls, call{unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSCTTY, 0}})
	}
	for _, one := range calls {
		lets, known := c.Filter.lets.Load(one)
		if !known {
			lets = c.Filter.run(one)
			c.Filter.lets.Store(one, lets)
		}
		if !lets.(bool) {
			return true
		}
	}
	return false
}

// call is a system call with its arguments, 0 for an address.
type call struct {
	number uint64
	args   [6]uint64
}

// run reports whether the filter lets the call be made.
func (f *Filter) run(c call) bool {
	raw := make([]bpf.RawInstruction, 0, len(f.Program))
	for _, i := range f.Program {
		raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		return false
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return false
	}
	// struct seccomp_data of seccomp(2). The virtual machine is one for packets, whose words are big-endian.
	data := binary.BigEndian.AppendUint32(nil, uint32(c.number))
	data = binary.BigEndian.AppendUint32(data, unix.AUDIT_ARCH_X86_64)
	data = append(data, make([]byte, 8)...) // the instruction pointer
	for _, a := range c.args {
		data = binary.BigEndian.AppendUint32(data, uint32(a))
		data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
	}
	action, err := vm.Run(data)
	if err != nil {
		return false
	}
	switch uint32(action) & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_LOG:
		return true
	}
	return false
}
