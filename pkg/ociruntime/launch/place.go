// SPDX-FileCopyrightText: The containerd-shim-sandbox-v1 authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pathCalls are the system calls of the program that can wait for a file system of the container, with the index of the
// argument that is the path.
var pathCalls = map[int]struct {
	name string
	path int
}{
	unix.SYS_CHDIR:      {"chdir", 0},
	unix.SYS_OPENAT:     {"openat", 1},
	unix.SYS_NEWFSTATAT: {"newfstatat", 1},
	unix.SYS_FACCESSAT2: {"faccessat2", 1},
	unix.SYS_EXECVE:     {"execve", 0},
}

// place tells for a person what the launcher of that pid does, which lives.
func place(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err != nil {
		return "an unknown step"
	}
	var call int
	var args [2]uint64
	if n, err := fmt.Sscanf(string(text), "%d 0x%x 0x%x", &call, &args[0], &args[1]); n != 1+len(args) {
		return fmt.Sprintf("no system call (%s: %v)", bytes.TrimSpace(text), err)
	}
	c, ok := pathCalls[call]
	if !ok {
		return fmt.Sprintf("system call %d", call)
	}
	return fmt.Sprintf("%s %q", c.name, stringAt(pid, args[c.path]))
}

// stringAt is what is at an address of a process, up to a zero byte.
func stringAt(pid int, address uint64) []byte {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil
	}
	defer func() { _ = memory.Close() }() // only read
	b := make([]byte, 256)
	n, _ := memory.ReadAt(b, int64(address)) // what can be read
	b, _, _ = bytes.Cut(b[:n], []byte{0})
	return b
}
